"""`strobe demo`, with Spark."""

import contextlib
import os
import re
import signal
import subprocess
from pathlib import Path
from types import SimpleNamespace

import pytest
from tests.cli.command_line import refused, run, run_apart

from strobe.cli.arguments.stores import fresh_store
from strobe.cli.demo import demo
from strobe.cli.demo.bank import BRANCHES
from strobe.cli.shell.output import ProgressLine
from strobe.errors import TransportError, UsageError
from strobe.protocol.values.ids import SnapshotId, short_name
from strobe.protocol.values.log_entries import Begin
from strobe.runtime.api.discovery import Discovered
from strobe.runtime.messages.api_documents import RollbackReport, Status
from strobe.spark.pipeline.output_tables import VERDICTS, Outputs
from strobe.storage import Store

OPENING = "a bank of 4 branches, each a process of its own; a snapshot every second"


@pytest.fixture
def here(tmp_path, monkeypatch):
    """Work in an empty directory."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture(scope="module")
def simulated(tmp_path_factory):
    """Three snapshots of the demo's bank, taken in the simulator because that is faster."""
    store = tmp_path_factory.mktemp("simulated") / "store"
    taken = run("simulate", demo.SYSTEM, "--snapshots", "3", "--faults", "none", "--store", store)
    assert taken.code == 0, taken
    return store


class Judge:
    """Stands for the pipeline: `looks` are the successive answers to whether there is a verdict yet."""

    def __init__(self, store, *looks):
        self._looks = list(looks)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        pass

    def wait_started(self, timeout_s):
        pass

    @property
    def has_judged(self):
        return self._looks.pop(0)


@pytest.fixture
def quick(here, simulated, monkeypatch):
    """Replace the bank's run by simulated snapshots, all with the same verdict; return a function that sets it."""

    def run_bank(found, snapshots, judging, progress):
        taken, store = Store.open(simulated), Store.open(found.store)
        for number, (_, name, _) in enumerate(taken.list()):
            snapshot = taken.load(name)
            begin = Begin(name, snapshot.view.number, snapshot.protocol, snapshot.initiators, snapshot.started_us)
            store.append(begin, 2 * number)
            store.commit(name, store.write_snapshot(snapshot), 2 * number + 1, snapshot.completed_us)

    def choose(verdict):
        def judge(found, judging):
            for row in found.snapshots:
                row.verdict, row.reason = verdict, f"Spark says {verdict}"

        monkeypatch.setattr(demo, "_judge", judge)

    monkeypatch.setattr(demo, "_run", run_bank)
    monkeypatch.setattr(demo, "Judging", Judge)
    choose("holds")
    return choose


def processes_in(directory):
    """Return the processes whose working directory is below `directory`: only the demo's bank and its Java."""
    found = {}
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # it may have ended in between, or belong to another user
            if (entry / "cwd").readlink().is_relative_to(directory):
                found[entry.name] = (entry / "cmdline").read_bytes()
    found.pop(str(os.getpid()), None)
    return found


def test_R1_the_demo_kills_a_branch_and_every_snapshot_of_the_bank_holds(here):
    """R1, P1: real processes, one killed with SIGKILL; the verdicts are Spark's. No process is left running."""
    result = run_apart("demo", "--snapshots", "4", cwd=here)
    assert result.code == 0, result
    lines = result.out.splitlines()
    assert lines[0] == OPENING
    assert lines[1].startswith("branch c was killed with SIGKILL after ")
    assert lines[2].startswith("rolled back to 1.")
    table = next(number for number, line in enumerate(lines) if line.startswith("snapshot "))
    assert lines[table].split() == ["snapshot", *BRANCHES, "in", "flight", "total", "proof", "verdict", "ms"]
    end = next(number for number, line in enumerate(lines) if line.endswith("total 800 = 800"))
    rows = lines[table + 1 : lines.index("", table)]
    taken = len(Store.open(here / "strobe-demo").list())
    assert len(rows) == min(taken, demo.SHOWN_MAX)
    assert [row.split()[0] for row in rows[-4:]] == ["2.1", "2.2", "2.3", "2.4"] or rows[-4].startswith("2.")
    assert lines[end] == f"{taken} snapshots, {taken} proofs hold, total 800 = 800"
    for row in rows:
        assert row.split()[-4:-1] == ["800", "holds", "holds"]
    assert max(map(len, lines[table:end])) <= 80
    assert result.err == ""
    assert processes_in(here) == {}
    assert [path.name for path in here.iterdir()] == ["strobe-demo"]
    _judged_before_the_crash(here / "strobe-demo")
    _next_steps_work_as_printed(lines[end + 1 :], taken)


def _judged_before_the_crash(store):
    """The pipeline judged snapshots while the bank ran, before its crash."""
    outputs = Outputs(store / "run" / "verdicts")
    judged = [row["checked_at"] for batch in outputs.batches() for row in outputs.read(VERDICTS, batch)]
    after = [manifest.started_us for _, name, manifest in Store.open(store).list() if not name.startswith("000001-")]
    assert min(judged).timestamp() * 1e6 < min(after)


def _next_steps_work_as_printed(lines, snapshots):
    text = "\n".join(line for line in lines if line.startswith("  ") or line.endswith(":"))
    show, simulate, query = (step.partition(":\n")[2] for step in re.split(r"\n(?=\S)", text))
    assert show.endswith("strobe snapshot show latest --store ./strobe-demo")
    shown = subprocess.run(show, shell=True, capture_output=True, text=True, check=True)
    assert "proof      holds" in shown.stdout
    simulated = subprocess.run(simulate, shell=True, capture_output=True, text=True, check=True)
    assert "9 passed" in simulated.stdout
    queried = subprocess.run(query, shell=True, capture_output=True, text=True, check=True)
    assert queried.stdout.count("|800  |") == snapshots


def test_a_verdict_that_does_not_hold_ends_with_1(quick):
    quick("violated")
    result = run("demo")
    assert result.code == 1
    assert "Spark says violated" in result.out
    assert "strobe snapshot show" not in result.out


def test_a_verdict_that_is_missing_ends_with_1(quick, monkeypatch):
    monkeypatch.setattr(demo, "_judge", lambda found, judging: None)
    result = run("demo")
    assert result.code == 1
    assert "missing" in result.out


def test_json_is_one_document(quick):
    result = run("demo", "--json")
    assert result.code == 0
    assert result.document["holds"] is True
    assert len(result.document["snapshots"]) >= 3
    for row in result.document["snapshots"]:
        assert sum(row["balances"].values()) + row["in_flight"] == row["total"] == 800


@pytest.mark.parametrize(
    ("before", "after", "shown"),
    [
        (3, 4, "1.1-2.4"),
        (6, 4, "1.1-2.4"),
        (30, 4, "1.25-2.4"),
        (30, 2, "1.23-2.2"),
        (3, 12, "1.1-2.7"),
        (12, 0, "1.3-1.12"),
    ],
)
def test_the_table_shows_the_snapshots_around_the_crash(before, after, shown):
    numbers = [(1, n + 1) for n in range(before)] + [(2, n + 1) for n in range(after)]
    rows = [demo.DemoSnapshot(str(SnapshotId(*number, "a")), {}, 0, 800, "holds", 1.0) for number in numbers]
    found = demo.Demo("store", rows).shown
    assert f"{short_name(found[0].snapshot)}-{short_name(found[-1].snapshot)}" == shown
    assert len(found) == min(10, len(rows))


def test_an_earlier_demo_is_replaced(quick):
    assert run("demo").code == 0
    first = Store.open("strobe-demo").header.store
    assert run("demo").code == 0
    assert Store.open("strobe-demo").header.store != first


def test_the_store_of_an_interrupted_demo_is_replaced(quick):
    assert run("demo").code == 0
    Path("strobe-demo/log/00000000000000000001.json").write_bytes(b"")
    Path("strobe-demo/run/log").mkdir(parents=True)
    assert run("demo").code == 0


class Bank:
    """Stands for the supervisor of the bank; `statuses` are returned one after the other."""

    def __init__(self, *statuses):
        self.statuses = list(statuses)
        self.killed = []
        self.ended = False
        self.client = SimpleNamespace(status=lambda: self.statuses.pop(0))

    def __call__(self, *_):
        return self

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.ended = True

    def start(self):
        pass

    def stop(self):
        pass

    def tick(self):
        pass

    def kill(self, name):
        self.killed.append(name)
        return len(self.killed) > 1  # the first time it is just being restarted


def status_of(committed, rollbacks=()):
    fields = dict.fromkeys(Status.__struct_fields__, 0)
    return Status(**(fields | {"committed": committed, "rollbacks": list(rollbacks), "processes": [], "finished": []}))


def test_the_branch_is_killed_and_the_demo_ends_after_the_rollback(here, monkeypatch):
    back = RollbackReport(2, 1, None, "c is connected without state", "c", {"c": 5})
    bank = Bank(*map(status_of, (0, 2, 3, 4, 6)), status_of(6, [back]), status_of(9, [back]), status_of(10, [back]))
    monkeypatch.setattr(demo, "Supervisor", bank)
    monkeypatch.setattr(demo, "POLL_EVERY_S", 0)
    found = demo.Demo("store")
    demo._run(found, 6, Judge("store", False, *[True] * 6), ProgressLine())
    assert bank.killed == ["c", "c"]
    assert found.killed == "branch c was killed with SIGKILL after 4 snapshots"
    assert found.rolled_back == (
        "rolled back to the beginning, epoch 2: c is connected without state; undone events: c 5"
    )
    assert bank.ended


def test_an_interrupt_ends_the_bank(here, monkeypatch):
    bank = Bank(status_of(0))
    bank.tick = lambda: signal.raise_signal(signal.SIGINT)
    monkeypatch.setattr(demo, "Judging", Judge)
    monkeypatch.setattr(demo, "Supervisor", bank)
    assert run("demo") == (
        130,
        f"{OPENING}\n",
        "interrupted\n",
    )
    assert bank.ended


def test_a_bank_that_makes_no_progress_is_not_awaited_forever(here, monkeypatch):
    def nobody():
        raise TransportError("nobody answers")

    bank = Bank()
    bank.client.status = nobody
    monkeypatch.setattr(demo, "Judging", Judge)
    monkeypatch.setattr(demo, "Supervisor", bank)
    monkeypatch.setattr(demo, "POLL_EVERY_S", 0)
    monkeypatch.setattr(demo, "PATIENCE_S", 0.05)
    result = run("demo")
    assert result.code == 3
    assert "the bank took too long; see its logs in " in result.error
    assert bank.ended


@pytest.mark.parametrize("content", ["file", "directory", "store", "link"])
def test_anything_else_is_left_alone(here, content):
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
    refused(run("demo"), "strobe-demo")
    assert sorted(here.rglob("*")) == before


def test_the_store_of_a_demo_that_still_runs_is_left_alone(tmp_path, monkeypatch):
    store = fresh_store(str(tmp_path / "store"), "demo")
    monkeypatch.setattr("strobe.cli.arguments.stores.running_for", lambda url: Discovered("", "", 0, 0))
    with pytest.raises(UsageError, match="a system is running on the store"):
        fresh_store(store.url, "demo")
    assert Store.open(store.url).header == store.header
