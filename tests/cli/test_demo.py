"""`strobe demo`: what a newcomer sees first, with Spark and all."""

import contextlib
import subprocess
from pathlib import Path

import pytest
from tests.cli.command_line import refused, run, run_apart

from strobe.cli import demo
from strobe.cli.demo_bank import BRANCHES
from strobe.storage import Store


@pytest.fixture
def here(tmp_path, monkeypatch):
    """Work in an empty directory."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def without_spark(monkeypatch, verdict="holds"):
    """Let every snapshot have the same verdict."""

    def judge(found):
        for row in found.snapshots:
            row.verdict = verdict
            row.reason = f"Spark says {verdict}"

    monkeypatch.setattr(demo, "_judge", judge)


def java_processes():
    """Return the Java processes that are children of nobody any more or of this process."""
    found = set()
    for entry in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):  # it may have ended meanwhile
            if b"strobe-spark-" in entry.read_bytes():
                found.add(entry.parent.name)
    return found


def test_the_demo_shows_snapshots_proofs_and_verdicts_and_what_to_try_next(here):
    before = java_processes()
    result = run_apart("demo", "--snapshots", "4", cwd=here)
    assert result.code == 0, result.err
    lines = result.out.splitlines()
    assert lines[0].startswith(f"seed {demo.SEED}, faults: delay_us_min=100 ")
    assert lines[2].split() == ["snapshot", *BRANCHES, "in", "flight", "total", "proof", "verdict", "ms"]
    end = lines.index("4 snapshots, 4 proofs hold, total 800 = 800")
    assert lines[end - 1].startswith("faults injected: ")
    for line in lines[3:7]:
        assert line.split()[-4:-1] == ["800", "holds", "holds"]
    assert max(map(len, lines[2:7])) <= 100
    assert result.err == ""
    assert java_processes() <= before
    assert [path.name for path in here.iterdir()] == ["strobe-demo"]
    _next_steps_work_as_printed([line.strip() for line in lines[end:] if line.startswith("  ")])


def _next_steps_work_as_printed(commands):
    show, query = commands
    assert show.endswith("strobe snapshot show latest --store ./strobe-demo")
    shown = subprocess.run(show, shell=True, capture_output=True, text=True, check=True)
    assert "proof      holds" in shown.stdout
    asked = subprocess.run(query, shell=True, capture_output=True, text=True, check=True)
    assert asked.stdout.count("|800  |") == 4


def test_a_verdict_that_does_not_hold_ends_with_1(here, monkeypatch):
    without_spark(monkeypatch, "violated")
    result = run("demo", "--snapshots", "2")
    assert result.code == 1
    assert "Spark says violated" in result.out
    assert "strobe snapshot show" not in result.out


def test_a_verdict_that_is_missing_ends_with_1(here, monkeypatch):
    monkeypatch.setattr(demo, "_judge", lambda found: None)
    result = run("demo", "--snapshots", "2")
    assert result.code == 1
    assert "missing" in result.out


def test_json_is_one_document(here, monkeypatch):
    without_spark(monkeypatch)
    result = run("demo", "--snapshots", "3", "--seed", "5", "--json")
    assert result.code == 0
    assert result.document["seed"] == 5
    assert result.document["holds"] is True
    for row in result.document["snapshots"]:
        assert sum(row["balances"].values()) + row["in_flight"] == row["total"] == 800


@pytest.mark.parametrize("seed", range(1, 11))
def test_as_many_snapshots_as_asked_for_whatever_the_seed(here, monkeypatch, seed):
    without_spark(monkeypatch)
    result = run("demo", "--seed", str(seed), "--snapshots", "6")
    assert result.code == 0
    assert "6 snapshots, 6 proofs hold, total 800 = 800" in result.out.splitlines()


def test_an_earlier_demo_is_replaced(here, monkeypatch):
    without_spark(monkeypatch)
    assert run("demo", "--snapshots", "2").code == 0
    first = Store.open("strobe-demo").header.store
    assert run("demo", "--snapshots", "2").code == 0
    assert Store.open("strobe-demo").header.store != first


def test_what_an_interrupted_demo_left_is_replaced(here, monkeypatch):
    without_spark(monkeypatch)
    assert run("demo", "--snapshots", "2").code == 0
    Path("strobe-demo/log/00000000000000000001.json").write_bytes(b"")
    assert run("demo", "--snapshots", "2").code == 0


@pytest.mark.parametrize("content", ["file", "directory", "store", "link"])
def test_anything_else_is_left_alone(here, monkeypatch, content):
    without_spark(monkeypatch)
    target = here / "strobe-demo"
    if content == "file":
        target.write_text("mine")
    elif content == "directory":
        target.mkdir()
        (target / "photo.jpg").write_bytes(b"mine")
    elif content == "store":
        Store.create(target)
    else:
        Store.create(here / "elsewhere", identity="demo-elsewhere")
        target.symlink_to(here / "elsewhere")
    before = sorted(here.rglob("*"))
    refused(run("demo", "--snapshots", "1"), "strobe-demo")
    assert sorted(here.rglob("*")) == before
