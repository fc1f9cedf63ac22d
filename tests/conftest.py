"""Rules for every test: property tests are repeatable, and a skipped test fails the run."""

from __future__ import annotations

import gc
import os
import sys
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import settings
from tests.spark import class_archive
from tests.support import object_server
from xdist.scheduler import LoadScopeScheduling

if TYPE_CHECKING:
    from collections.abc import Iterator

    from _pytest.terminal import TerminalReporter
    from xdist.remote import Producer

ROOT = Path(__file__).parent.parent

# The same examples on every run, and no wall-clock deadline, so a failure is always about the code. The number of
# examples keeps the unit tests fast enough to wait for.
settings.register_profile("repeatable", deadline=None, derandomize=True, max_examples=40)
# For a longer search by hand: pytest --hypothesis-profile=search
settings.register_profile("search", deadline=None, max_examples=2000, print_blob=True)
settings.load_profile("repeatable")

os.environ |= class_archive.environment()

# Keep compiled tests, whatever the environment says. Modules that tests write are never compiled to files: one that is
# written twice within a second could be taken for the first.
sys.dont_write_bytecode = False
os.environ["PYTHONDONTWRITEBYTECODE"] = "1"


# A unit test needs no socket, process, Spark, browser or clock, and takes only moments. Any other test is in a folder
# named after what it needs, whatever package it belongs to.
KINDS = {"sockets", "processes", "browser", "long"}
OTHER_TREES = {"spark", "live", "claims"}


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--unit", action="store_true", help="Only the unit tests: leave out folders of other kinds.")


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    folders = collection_path.relative_to(ROOT / "tests").parts
    other = KINDS & set(folders) or OTHER_TREES & set(folders[:1])
    return True if config.getoption("--unit") and other else None


def pytest_collection_finish() -> None:
    """Exclude imported and collected objects from garbage collection, which would take most of some tests' time."""
    sys.dont_write_bytecode = True
    gc.collect()
    gc.freeze()


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> LoadScopeScheduling:
    """Keep the tests of the shared Spark session together, and those of each file; begin with the first ones.

    The marks of xdist for this have no effect with pytest 9.2.
    """
    config.option.loadscopereorder = False
    scheduler = LoadScopeScheduling(config, log)
    scheduler._split_scope = group_of  # type: ignore[method-assign]
    return scheduler


@cache
def _wants_spark(path: str) -> bool:
    return "spark: SparkSession" in (ROOT / path).read_text()


def group_of(test: str) -> str:
    """Return the group of a test, which runs in one worker. Files that start clusters are groups of their own."""
    path = test.partition("::")[0]
    return "spark" if _wants_spark(path) and not path.endswith("_clusters.py") else path


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin with the longest tests: the shared Spark session, then live systems and commands."""
    long = {"live", "processes", "test_clusters.py"}
    items.sort(key=lambda item: (group_of(item.nodeid) != "spark", not long & {*item.path.parts}))


@pytest.fixture(scope="session")
def objects() -> Iterator[object_server.ObjectServer]:
    """An object store, started for the first test that uses it."""
    with object_server.running() as server:
        yield server


def skipped_tests(reporter: TerminalReporter) -> list[str]:
    """Return every skipped test or module, with its reason."""
    reports = reporter.stats.get("skipped", [])
    return [f"{report.nodeid} ({_reason(report.longrepr)})" for report in reports]


def _reason(longrepr: object) -> str:
    text = longrepr[2] if isinstance(longrepr, tuple) else str(longrepr)
    return text.removeprefix("Skipped: ")


def _reporter(config: pytest.Config) -> TerminalReporter | None:
    return config.pluginmanager.get_plugin("terminalreporter")


@pytest.hookimpl(tryfirst=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    """A skipped test does not show that its promise holds, so a skip fails the run."""
    reporter = _reporter(session.config)
    if reporter and session.exitstatus == pytest.ExitCode.OK and skipped_tests(reporter):
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


@pytest.hookimpl(trylast=True)
def pytest_terminal_summary(terminalreporter: TerminalReporter) -> None:
    skipped = skipped_tests(terminalreporter)
    if not skipped:
        terminalreporter.write_line("skipped tests: none")
        return
    terminalreporter.write_line("skipped tests (these fail the run):", red=True)
    for line in skipped:
        terminalreporter.write_line(f"  {line}")
