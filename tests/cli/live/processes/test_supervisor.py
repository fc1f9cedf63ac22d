"""The children of `strobe up`: their logs, restarts and exits."""

import os
import signal
import sys
from io import StringIO
from types import SimpleNamespace

import pytest
from rich.console import Console
from tests.cli.live.processes.started_up import (
    child_that,
    ended,
    status_of,
)
from tests.live.support.harness import wait_until

from strobe.cli.live import child as children
from strobe.cli.live import child_log
from strobe.cli.live import supervisor as supervising
from strobe.cli.live.child import HANDED_OVER
from strobe.cli.live.notices import timed
from strobe.cli.live.supervisor import ChildFailed, Supervisor, _with_options
from strobe.cli.live.up_display import UpDisplay, _rendered
from strobe.cli.live.up_session import Session
from strobe.cli.shell.waiting import interruptible
from strobe.errors import LogReplaced, TransportError
from strobe.protocol.values.log_entries import EntryRef
from strobe.runtime.messages.verdicts import ConditionStatus, ConditionVerdict
from strobe.storage import Store


def test_the_first_signal_is_noted_and_the_second_interrupts():
    before = signal.getsignal(signal.SIGTERM)
    with interruptible() as interrupted:
        signal.raise_signal(signal.SIGTERM)
        assert interrupted == [signal.SIGTERM]
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
    assert signal.getsignal(signal.SIGTERM) is before


def supervising_on(store, processes, program=supervising.PROGRAM):
    Store.create(store)
    return Supervisor("bank.py:bank", str(store), processes, program=program)


def test_a_log_that_is_too_long_is_truncated_while_its_child_writes(tmp_path, monkeypatch):
    monkeypatch.setattr(child_log, "LOG_BYTES_MAX", 1000)
    read, write = os.pipe()
    child = child_that(tmp_path, f"import os; print('x' * 1000); os.read({read}, 1); print('later')")
    child.start(read)
    wait_until("its lines", lambda: child.log.path.stat().st_size > 1000)
    child.log.bound()
    assert child.log.path.read_bytes() == b""
    assert child.log.path.with_name("b.log.1").read_bytes() == b"x" * 1000 + b"\n"
    os.write(write, b"!")
    assert ended(child) == 0
    assert child.log.path.read_bytes() == b"later\n"
    assert child.tail() == "later"
    child.log.bound()
    assert child.log.path.read_bytes() == b"later\n"
    os.close(read)
    os.close(write)


def test_only_the_end_of_a_long_log_is_read(tmp_path, lifeline, monkeypatch):
    monkeypatch.setattr(child_log, "_TAIL_BYTES", 30)
    child = child_that(tmp_path, "print('10:00 error: too long ago'); print('.' * 20); print('10:00 error: the last')")
    child.start(lifeline)
    ended(child)
    assert child.last_error() == "the last"
    monkeypatch.setattr(child_log, "_TAIL_BYTES", 15)
    assert child.last_error() == ""


def test_the_last_error_in_a_log_is_joined_into_one_line(tmp_path, lifeline):
    text = "10:00 error: something else\\n  set in\\nerror: cannot listen at\\n  127.0.0.1:1: taken;\\n  free it"
    child = child_that(tmp_path, f"print('{text}')")
    child.start(lifeline)
    ended(child)
    assert child.last_error() == "cannot listen at 127.0.0.1:1: taken; free it"


def test_a_log_shared_with_another_coordinator_shows_only_the_final_error(tmp_path, lifeline):
    """A second coordinator for the same store: only its own error is shown, without log lines of the first one."""
    log = [
        "12:00:01.000 begun snapshot=000001-00000003-coordinator",
        "error: a coordinator runs for the store already (pid 7); stop",
        "  it first:",
        "    kill 7",
        "12:00:01.010 error: the store is away",
    ]
    child = child_that(tmp_path, f"print({chr(10).join(log)!r})")
    child.start(lifeline)
    ended(child)
    assert child.final_error() == "a coordinator runs for the store already (pid 7); stop it first:\n    kill 7"


def test_a_child_that_ends_without_an_error_is_shown_with_its_log_tail(tmp_path, lifeline):
    child = child_that(tmp_path, "print('12:00:01.000 it begins'); print('Killed')")
    child.start(lifeline)
    ended(child)
    assert str(ChildFailed("b", 3, child.final_error(), False)) == (
        "b ended with exit code 3:\n12:00:01.000 it begins\nKilled"
    )


def test_a_child_that_keeps_ending_is_restarted_with_back_off(tmp_path, lifeline, monkeypatch):
    now = [100.0]
    monkeypatch.setattr(children, "time", SimpleNamespace(monotonic=lambda: now[0]))
    child = child_that(tmp_path, "print('I end', flush=True); raise SystemExit(1)")
    waits = []
    for _ in range(8):
        child.start(lifeline)
        assert ended(child) == 1
        waits.append(round(child.restart_at_s - now[0], 3))
    assert waits == [0.05, 0.1, 0.2, 0.4, 0.8, 1.6, 2.0, 2.0]
    child.start(lifeline)
    now[0] += 60.0  # it has run for long
    assert ended(child) == 1
    assert child.restart_at_s == pytest.approx(now[0] + children.RESTART_S_MIN)
    assert child.starts == 9
    assert child.tail() == "I end"  # the output of earlier starts is not shown again


@pytest.mark.parametrize(
    ("name", "code", "again"),
    [("b", 0, False), ("b", 1, True), ("b", -9, True), ("b", 70, True), ("coordinator", 0, True)],
)
def test_which_children_are_restarted(tmp_path, name, code, again):
    Store.create(tmp_path)
    with Supervisor("bank.py:bank", tmp_path.as_uri(), ["b"]) as supervisor:
        assert supervisor.store == str(tmp_path)
        child = supervisor._add(name, [])
        supervisor._judge(child, code)
        assert child.ended is not again
        supervisor.needed(name)
        assert child.ended is False


@pytest.mark.parametrize(
    ("name", "code"), [("b", 2), ("b", 3), ("coordinator", 1), ("coordinator", 3), ("coordinator", 5)]
)
def test_which_children_end_everything(tmp_path, name, code):
    with supervising_on(tmp_path, ["b"]) as supervisor, pytest.raises(ChildFailed) as failed:
        supervisor._judge(supervisor._add(name, []), code)
    assert failed.value.exit_code == code
    assert failed.value.halted is (code == 1)


def test_a_coordinator_gets_the_newest_entry_until_the_log_was_replaced(tmp_path):
    """S1: the next coordinator waits for a store with that entry, but not after the log was found replaced."""
    with supervising_on(tmp_path, ["b"]) as supervisor:
        coordinator = supervisor._add("coordinator", ["coordinator"])
        for position in (7, 9):
            known = SimpleNamespace(last_entry=EntryRef(position, "a" * 64), pid=coordinator.pid)
            supervisor.note_status(known)
        assert coordinator.arguments == ["coordinator", "--last-entry", f"9:{'a' * 64}"]
        supervisor.note_status(SimpleNamespace(last_entry=EntryRef(99, "b" * 64), pid=-1))  # of another coordinator
        assert coordinator.arguments[-1].startswith("9:")
        supervisor._judge(coordinator, LogReplaced.exit_code)
        assert not coordinator.ended
        assert coordinator.arguments == ["coordinator", "--last-entry", ""]


def test_a_coordinator_that_cannot_restart_is_tried_several_times(tmp_path):
    """E7: its port may be in use for a moment."""
    with supervising_on(tmp_path, ["b"]) as supervisor:
        coordinator = supervisor._add("coordinator", [])
        coordinator.starts = 2
        for _ in range(2):
            supervisor._judge(coordinator, -9)  # it has run in between: earlier failures do not count
            for _ in range(supervising.RETURNS_MAX):
                supervisor._judge(coordinator, 3)
        assert not coordinator.ended
        for code in (3, 2):
            with pytest.raises(ChildFailed):
                supervisor._judge(coordinator, code)


def test_E11_a_successor_that_cannot_run_is_tried_until_it_can(tmp_path):
    """A program that was replaced by one that cannot run does not stop the others."""
    with supervising_on(tmp_path, ["b"]) as supervisor:
        node = supervisor._add("b", [])
        node.starts = 2
        for code in (HANDED_OVER, 2, 3, 1):
            supervisor._judge(node, code)
            assert not node.ended


def test_nodes_do_not_wait_for_an_ended_coordinator(tmp_path):
    """The lifeline ends them at once."""
    until_cut = "import os; os.read(int(os.environ['STROBE_LIFELINE']), 1)"
    supervisor = supervising_on(tmp_path, [], program=[sys.executable, "-c"])

    def nobody(**_):
        raise TransportError("nobody is there")

    supervisor.client = SimpleNamespace(stop=nobody)
    child = supervisor._add("b", [until_cut])
    child.start(supervisor._lifeline)
    killed = []
    child.process.kill = lambda: killed.append("b")
    supervisor.stop()
    assert child.process is None
    assert not killed


def test_a_coordinator_that_starts_slowly_is_awaited_and_reported(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(supervising, "SLOW_START_S", 0.01)
    slow = "import time; print('now error: the store is away', flush=True); time.sleep(0.5); raise SystemExit(3)"
    with supervising_on(tmp_path, [], program=[sys.executable, "-c"]) as supervisor:
        child = supervisor._add("coordinator", [slow])
        child.start(supervisor._lifeline)
        with pytest.raises(ChildFailed):
            supervisor._await_coordinator(child)
    assert "the coordinator is still starting: the store is away; see" in capsys.readouterr().err


def test_E14_a_full_disk_is_reported_though_the_coordinator_cannot_log_it(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(supervising, "FULL_DISK_S", 0.01)
    monkeypatch.setattr(os, "fstatvfs", lambda file: SimpleNamespace(f_bavail=0))
    with supervising_on(tmp_path, [], program=[sys.executable, "-c"]) as supervisor:
        child = supervisor._add("coordinator", ["import time; time.sleep(0.5); raise SystemExit(3)"])
        child.start(supervisor._lifeline)
        with pytest.raises(ChildFailed):
            supervisor._await_coordinator(child)
    assert "coordinator.log is full; make room" in " ".join(capsys.readouterr().err.split())


def test_an_interrupt_during_the_start_ends_at_once():
    interrupted = SimpleNamespace(start=lambda _: signal.raise_signal(signal.SIGINT))
    # A shell starts background jobs with SIGINT ignored, so tests may have been started like that.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt):
            Session(interrupted).run(None)
    finally:
        signal.signal(signal.SIGINT, before)


def test_a_restarted_child_registers_as_part_of_the_same_run(tmp_path):
    script = "import sys; print(sys.argv[sys.argv.index('--run') + 1], flush=True); raise SystemExit(1)"
    with supervising_on(tmp_path, [], program=[sys.executable, "-c", script]) as supervisor:
        supervisor.add_node("a", "127.0.0.1:1")
        supervisor.add_node("b", "127.0.0.1:1")
        while supervisor.starts("a") < 3 or supervisor.starts("b") < 2:
            supervisor.tick()
    runs = {name: (supervisor.logs / f"{name}.log").read_text().split() for name in "ab"}
    assert runs["a"][0] == runs["a"][1] != runs["b"][0]


def test_options_given_again_take_the_place_of_those_before():
    assert _with_options(["coordinator", "--listen", "a:0", "--json-logs"], {"--listen": "a:7", "--api": "a:8"}) == [
        *("coordinator", "--json-logs", "--listen", "a:7", "--api", "a:8")
    ]


def condition(latest, name="conserved", **changes):
    return ConditionStatus(name, snapshot="s7", latest=latest, **changes)


CONDITIONS = {
    "conserved ✓ 800 (judged 40 of 43)": condition(
        ConditionVerdict("holds", "800", "800"), holds=40, skipped=2, undecided=1
    ),
    "conserved ✗ 790 ≠ 800 (judged 1 of 1)": condition(ConditionVerdict("violated", "800", "790"), violated=1),
    "conserved error: KeyError: 'z' (judged 0 of 1)": condition(
        ConditionVerdict("error", problem="KeyError: 'z'"), error=1
    ),
    "conserved: not judged yet (judged 0 of 0)": condition(None),
    "no_debt ✓ (judged 2 of 2)": condition(ConditionVerdict("holds"), "no_debt", holds=2),
    "a.x < 3 ✗ a.x = 4 (judged 1 of 1)": condition(
        ConditionVerdict("violated", found="a.x = 4"), "a.x < 3", violated=1
    ),
    "deadlock ✓ none (judged 1 of 1)": condition(ConditionVerdict("holds"), "deadlock", holds=1),
    "deadlock: a→b→a (judged 1 of 1)": condition(ConditionVerdict("violated", found="a→b→a"), "deadlock", violated=1),
    "termination: not terminated; active: a (judged 1 of 1)": condition(
        ConditionVerdict("not_yet", found="not terminated; active: a"), "termination", not_yet=1
    ),
}


@pytest.mark.parametrize("line", CONDITIONS)
def test_E12_the_table_has_the_newest_verdict_and_how_many_were_judged(line):
    status = status_of(conditions=[CONDITIONS[line]])
    console = Console(file=StringIO(), width=120)
    console.print(_rendered(status, []))
    assert line in console.file.getvalue()


def test_E12_each_changed_verdict_is_shown_once(capsys):
    watch = UpDisplay(clock_s=lambda: 0.0)
    time = timed(0.0, "")
    for found in ("800", "800", "790", "780", "800"):
        verdict = ConditionVerdict("holds" if found == "800" else "violated", "800", found)
        watch.show(status_of(conditions=[condition(verdict)]))
    assert capsys.readouterr().err.splitlines() == [
        f"{time}snapshot s7: conserved ✓ 800",
        f"{time}snapshot s7: conserved ✗ 790 ≠ 800",
        f"{time}snapshot s7: conserved ✓ 800",
    ]
