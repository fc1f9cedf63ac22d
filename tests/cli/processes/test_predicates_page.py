"""The examples of docs/predicates.md work as written."""

import re
from pathlib import Path

import pytest
from tests.cli.command_line import REPOSITORY, run

from strobe.simulation import World

PAGE = (REPOSITORY / "docs" / "predicates.md").read_text("utf-8")


def blocks(language):
    return re.findall(rf"^```{language}\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE)


@pytest.fixture
def names():
    """The names that the two systems of the page define."""
    found = {}
    clerks, _, detecting = blocks("python")
    exec(clerks, found)
    exec(detecting, found)
    return found


def test_its_commands_run_and_print_what_it_shows(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("examples").symlink_to(REPOSITORY / "examples")
    first, second = (line.split()[1:] for line in blocks("sh")[0].splitlines())
    simulated = run(*first)
    assert simulated.code == 1
    assert "deadlock: p0→p4→p3→p2→p1→p0" in simulated.out
    result = run(*second)
    assert result.code == 1
    assert "\n".join(result.out.splitlines()[1:]) in PAGE


def test_its_clerks_are_deadlocked(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("clerks.py").write_text(blocks("python")[0])
    simulated = run("simulate", "clerks.py:clerks", "--snapshots", "3", "--faults", "none", "--store", "store")
    assert simulated.code == 1
    assert "deadlock: a→b→a" in simulated.out
    result = run("snapshot", "predicates", "--store", "store")
    assert result.code == 1
    assert "a waits for b waits for a" in result.out


def test_its_tree_of_work_reports_its_end(names):
    world = World(names["tree"], 1)
    world.run(2)
    assert world.emitted == [("a", "all is done")]
