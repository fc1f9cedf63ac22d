"""Supervision and shutdown of the children of `strobe up`, mostly with stand-ins for the processes."""

import re
import sys
import threading
from concurrent.futures import wait
from types import SimpleNamespace

import pytest
from tests.cli.command_line import simulated_store
from tests.cli.live.processes.started_up import status_of
from tests.cli.live.processes.test_up import process_of

from strobe.cli.live import supervisor as supervising
from strobe.cli.live import up_session as sessions
from strobe.cli.live.child import HANDED_OVER, EndedChild
from strobe.cli.live.supervisor import ChildFailed, Supervisor
from strobe.cli.live.up_display import condition_summary
from strobe.cli.live.up_session import Session
from strobe.errors import TransportError
from strobe.runtime.api.client import RequestRefused
from strobe.runtime.messages.api_documents import TakeResult, Trouble
from strobe.runtime.messages.verdicts import ConditionStatus, ConditionVerdict
from strobe.storage import Store

TIME = re.compile(r"^\d\d:\d\d:\d\d ")
COMMITTED = TakeResult("000001-00000001-x", "committed", "")
ABORTED = TakeResult("000001-00000001-x", "aborted", "b did not answer")


def answering(*answers):
    """Return a function that returns or raises these answers in turn, and then repeats the last one."""
    left = list(answers)

    def answered(**_):
        answer = left.pop(0) if len(left) > 1 else left[0]
        if isinstance(answer, Exception):
            raise answer
        return answer

    return answered


class Children:
    """Stands for a supervisor: `status` and `take` answer for its coordinator; `gone` lists what ends at each tick."""

    def __init__(self, status, take=None, gone=(), failure=None):
        self.client = SimpleNamespace(status=status, take=take, api="127.0.0.1:1")
        self.gone = list(gone)
        self.needs, self.stops, self.ticks = [], [], 0
        self.failure = failure
        self.store, self.identity = "/no/store", ""
        self.needed = self.needs.append
        self.seen = []
        self.note_status = self.seen.append

    def tick(self):
        self.ticks += 1
        ended = self.gone.pop(0) if self.gone else []
        if isinstance(ended, Exception):
            raise ended
        return ended

    def pid(self, name):
        assert name == "coordinator"
        return 4711

    def stop(self, asks):
        self.stops.append(asks)


@pytest.fixture
def hanging():
    """A call that gets no answer before the test ends."""
    over = threading.Event()

    def call(**_):
        over.wait()
        raise TransportError("it has never answered")

    yield call
    over.set()


@pytest.fixture(autouse=True)
def in_no_time(monkeypatch):
    """Remove the pauses between ticks and between polls."""
    monkeypatch.setattr(sessions, "TICK_S", 0.001)
    monkeypatch.setattr(sessions, "POLL_EVERY_S", 0.0)


def polled(session):
    """Request the status, wait for the answer, process it, and return the session."""
    session._keep_running()
    wait([session._request])
    session._poll_status()
    return session


def untimed(capsys):
    """Return the lines on stderr, without the times at their beginnings."""
    return [TIME.sub("", line) for line in capsys.readouterr().err.splitlines()]


def failing(count):
    return Trouble("snapshots", f"the last {count} were aborted")


def test_events_are_shown_once_and_needed_processes_are_started(capsys):
    slow = [Trouble("slow", f"channel a->b has waited {seconds} s") for seconds in (3.1, 3.6)]
    answers = [
        TransportError("no coordinator answers"),
        status_of(processes=[process_of("a", "missing")], troubles=slow[:1]),
        status_of(troubles=[slow[1], failing(3)]),
        status_of(troubles=[failing(4)]),
        status_of(halted="it crashes again and again"),
    ]
    children = Children(answering(*answers), gone=[[], [EndedChild("b", -9)], [], [EndedChild("c", 0)], []])
    session = Session(children)
    for _ in answers:
        polled(session)
    assert untimed(capsys) == [
        "b was killed by SIGKILL; it is started again",
        "slow: channel a->b has waited 3.1 s",
        "snapshots: the last 3 were aborted",
        "c has left",
        "over after 0 s: slow: channel a->b has waited 3.6 s",
        "over after 0 s: snapshots: the last 4 were aborted",
    ]
    assert children.needs == ["a"]


def test_E11_a_process_that_hands_over_is_shown_and_started_again(capsys):
    """Also one that ended with exit code 0 while it began, with a hand-over that it had not used yet."""
    answers = [status_of(processes=[process_of("a", "restarting")]), status_of()]
    children = Children(answering(*answers), gone=[[EndedChild("b", HANDED_OVER)], []])
    session = Session(children)
    for _ in answers:
        polled(session)
    assert untimed(capsys) == ["b has handed over to its successor; it is started again"]
    assert children.needs == ["a"]


def test_an_ended_coordinator_is_shown_as_restarted(capsys):
    gone = [[EndedChild("coordinator", -9)], [EndedChild("coordinator", 3, "its port is taken")]]
    session = Session(Children(answering(TransportError("no coordinator answers")), gone=gone))
    polled(polled(session))
    again = "it is started again, and processes continue meanwhile"
    assert untimed(capsys) == [
        f"coordinator was killed by SIGKILL; {again}",
        f"coordinator ended with exit code 3: its port is taken; {again}",
    ]


def test_children_are_watched_while_the_coordinator_hangs(hanging):
    """The loop does not wait for an answer. If it did, it would not tick twice."""
    children = Children(hanging)
    session = Session(children)
    for _ in range(3):
        session._keep_running()
    assert children.ticks == 3


def test_a_hanging_coordinator_is_reported_once_and_not_as_restarted(hanging, monkeypatch, capsys):
    monkeypatch.setattr(sessions, "SILENT_S", 0.0)
    session = Session(Children(hanging, gone=[[EndedChild("b", 1, "boom")]]))
    for _ in range(3):
        session._keep_running()
    failed, silent = untimed(capsys)
    assert failed == "b ended with exit code 1: boom; it is started again"  # the coordinator may never report it
    assert silent.startswith("the coordinator has not answered for 0 s, and its process 4711 is still there;")
    assert "kill it (kill -9 4711): a new one is started" in silent
    session._show(status_of())
    (over,) = untimed(capsys)
    assert over.startswith("over after 0 s: the coordinator has not answered for 0 s")
    assert session._display._notices.lines[1:] == []  # only the end of b is left


def test_the_notice_of_a_hanging_coordinator_goes_when_it_is_killed(hanging, monkeypatch):
    monkeypatch.setattr(sessions, "SILENT_S", 0.0)
    session = Session(Children(hanging, gone=[[], [EndedChild("coordinator", -9)]]))
    session._keep_running()
    assert session._display._notices.matters == {"silence"}
    monkeypatch.setattr(sessions, "SILENT_S", 60.0)
    session._keep_running()
    assert session._display._notices.matters == set()


def test_a_briefly_busy_coordinator_is_not_reported(hanging, capsys):
    Session(Children(hanging))._keep_running()
    assert capsys.readouterr().err == ""


# Shutdown


def test_a_hanging_coordinator_is_waited_for_once_in_the_end(hanging, monkeypatch, capsys):
    """If the request for a last snapshot gets no answer, no request to stop follows."""
    monkeypatch.setattr(sessions, "SILENT_S", 0.0)
    monkeypatch.setattr(sessions, "LAST_SNAPSHOT_S", 0.05)
    children = Children(hanging, hanging)
    session = Session(children)
    session._take_last()
    session._stop()
    assert children.stops == [False]
    shown = capsys.readouterr().err
    assert "no last snapshot could be taken (the coordinator does not answer)" in shown
    assert session.problem == shown.splitlines()[-1]
    assert session.problem.startswith("the coordinator did not answer at the end, so nothing recent was saved")


def test_a_hanging_coordinator_is_killed_at_the_stop(tmp_path, monkeypatch):
    """The lifeline ends its nodes, and it is killed. STOP_S_MAX is for children that are about to end."""
    monkeypatch.setattr(supervising, "CLOSE_S_MAX", 0.0)
    until_cut = "import os; os.read(int(os.environ['STROBE_LIFELINE']), 1)"
    for_ever = "import signal; signal.pause()"
    Store.create(tmp_path)
    supervisor = Supervisor("bank.py:bank", str(tmp_path), [], program=[sys.executable, "-c"])
    for name, program in (("coordinator", for_ever), ("b", until_cut)):
        supervisor._add(name, [program]).start(supervisor._lifeline)
    awaited = []
    await_end = supervisor._await_end
    supervisor._await_end = lambda seconds, children: (
        awaited.append([child.name for child in children]),
        await_end(seconds, children),
    )
    supervisor.stop(asks=False)
    assert awaited == [["b"], ["coordinator", "b"]]
    assert supervisor.pid("coordinator") is None
    assert supervisor.pid("b") is None


def test_a_coordinator_killed_at_the_end_restarts_for_the_last_snapshot(capsys):
    gone = [[EndedChild("coordinator", -9)]]
    children = Children(answering(status_of()), answering(TransportError("nobody"), COMMITTED), gone)
    Session(children)._take_last()
    assert children.ticks > 1
    lines = untimed(capsys)
    assert lines[0].startswith("coordinator was killed by SIGKILL; it is started again")
    assert lines[-1] == "last snapshot: 000001-00000001-x, committed"


def test_a_process_killed_at_the_end_restarts_for_the_last_snapshot(capsys):
    started = threading.Event()

    class Restarting(Children):
        def tick(self):
            started.set()
            return super().tick()

    def taken_when_it_runs(**_):
        assert started.wait(60)
        return COMMITTED

    Session(Restarting(answering(status_of()), taken_when_it_runs, [[EndedChild("b", -9)]]))._take_last()
    lines = untimed(capsys)
    assert lines == ["b was killed by SIGKILL; it is started again", "last snapshot: 000001-00000001-x, committed"]


@pytest.mark.parametrize(
    ("taken", "why"),
    [
        (TransportError("none has begun after 10 s"), "none has begun after 10 s"),
        (ABORTED, "000001-00000001-x was aborted: b did not answer"),
    ],
)
def test_a_missing_last_snapshot_is_reported_and_everything_is_stopped(monkeypatch, capsys, taken, why):
    monkeypatch.setattr(sessions, "LAST_SNAPSHOT_S", 0.05)
    children = Children(answering(status_of()), answering(taken))
    session = Session(children)
    session._take_last()
    session._stop()
    undone = "the store has no other one: the next start is from the initial state"
    lines = capsys.readouterr().err.splitlines()
    assert lines[0] == f"no last snapshot could be taken ({why}); {undone}"
    failed = f"no snapshot completed (1 tried); the last one: {why}" if taken == ABORTED else None
    assert session.problem == failed
    assert lines[1:] == ([failed] if failed is not None else [])
    assert children.stops == [True]


@pytest.mark.parametrize(
    ("committed", "continuation"),
    [(2, "continues from its newest one,"), (None, "continues from its newest one, if there is one,")],
)
def test_without_a_last_snapshot_the_next_start_is_explained(capsys, committed, continuation):
    session = Session(Children(None))
    session._status = status_of(committed=committed) if committed is not None else None
    session._report_none_taken("b hangs")
    what = f"the next start {continuation} and everything after that is undone"
    assert capsys.readouterr().err == f"no last snapshot could be taken (b hangs); {what}\n"


def test_the_final_count_comes_from_the_store_not_from_an_older_status(tmp_path, capsys):
    children = Children(None)
    children.store = str(simulated_store(tmp_path))
    session = Session(children)
    session._status = status_of(committed=0)
    session._report_none_taken("b hangs")
    assert "the next start continues from its newest one, and" in capsys.readouterr().err


REPORT = "b has crashed 3 times"
HALTED = status_of(halted=REPORT, troubles=[Trouble("halted", REPORT)])


def test_no_last_snapshot_is_taken_of_a_halted_system(capsys):
    refused = RequestRefused(f"everything is stopped: {REPORT}")
    session = Session(Children(answering(status_of(), HALTED), answering(refused), gone=[[EndedChild("b", 1, "boom")]]))
    session._take_last()
    session._stop()
    assert session._status.halted == REPORT
    assert f"halted: {REPORT}\n" in capsys.readouterr().err


def test_a_halt_right_before_the_end_is_reported_with_its_exit_code():
    """The coordinator has ended with this code already, so nothing else can report the halt."""
    halted = ChildFailed("coordinator", 1, REPORT, halted=True)
    session = Session(Children(answering(TransportError("nobody")), answering(TransportError("nobody")), [halted]))
    with pytest.raises(ChildFailed, match=REPORT):
        session._take_last()


@pytest.mark.parametrize(
    ("status", "failure", "code"),
    [
        (TransportError("it ends"), ChildFailed("coordinator", 1, REPORT, halted=True), 1),
        (status_of(halted=REPORT), None, 1),
        (TransportError("it ends"), ChildFailed("coordinator", 5, REPORT, halted=False), 5),
    ],
)
def test_a_halt_or_takeover_after_the_last_snapshot_is_reported(status, failure, code):
    children = Children(answering(status), failure=failure)
    session = Session(children)
    session._status = status_of()
    with pytest.raises(ChildFailed, match=REPORT) as failed:
        session._stop()
    assert failed.value.exit_code == code
    assert children.stops == [True]


def test_the_report_of_a_halt_during_the_stop_is_shown(tmp_path):
    Store.create(tmp_path)
    supervisor = Supervisor("bank.py:bank", str(tmp_path), [], program=[sys.executable, "-c"])
    halted = f"print('10:00 error: halted report=\"{REPORT}\"'); raise SystemExit(1)"
    supervisor._add("coordinator", [halted]).start(supervisor._lifeline)
    assert supervisor.failure is None
    supervisor.stop()
    assert str(supervisor.failure) == REPORT


HOLDS, VIOLATED = ConditionVerdict("holds", "8", "8"), ConditionVerdict("violated", "8", "7")


def test_one_snapshot_is_not_written_as_several():
    one = ConditionStatus("conserved", snapshot="s1", latest=HOLDS, holds=1)
    assert condition_summary(one) == "conserved ✓ 8 (judged 1 of 1 snapshot)"


def judged(started_us, latest, **changes):
    condition = ConditionStatus("conserved", snapshot="s1", latest=latest, **changes)
    return status_of(started_us=started_us, conditions=[condition])


def test_E12_the_end_waits_for_the_verdict_on_the_last_snapshot(capsys):
    waiting, final = judged(1, HOLDS, holds=1, pending=True), judged(1, VIOLATED, holds=1, violated=1)
    children = Children(answering(waiting, waiting, waiting, final))
    session = Session(children)
    session._stop()
    assert session._status.conditions[0].failed
    assert "conserved ✗ 7 ≠ 8 (judged 2 of 2 snapshots)" in capsys.readouterr().out


def test_E12_the_end_does_not_wait_for_a_verdict_that_never_comes(monkeypatch):
    monkeypatch.setattr(sessions, "LAST_VERDICTS_S", 0.0)
    children = Children(answering(judged(1, HOLDS, holds=1, pending=True)))
    Session(children)._stop()
    assert children.stops == [True]


def test_E12_what_an_earlier_coordinator_found_counts_in_the_end(capsys):
    first = judged(1, VIOLATED, violated=1, violation=VIOLATED, violation_snapshot="s1")
    session = Session(Children(answering(judged(2, HOLDS, holds=2))))
    session._show(first)
    session._stop()
    (condition,) = session._status.conditions
    assert (condition.holds, condition.violated, condition.failed) == (2, 1, True)
    assert "conserved ✓ 8 (judged 3 of 3 snapshots, 1 violated, the first s1 with 7 ≠ 8)" in capsys.readouterr().out


def test_E12_the_last_line_has_the_reason_for_exit_code_1(capsys):
    held = ConditionStatus("a.x < 3", latest=ConditionVerdict("holds"), holds=4)
    broken = ConditionStatus("no_debt", latest=ConditionVerdict("holds"), holds=3, violated=1, violation=VIOLATED)
    failing = ConditionStatus("odd", latest=ConditionVerdict("error", problem="KeyError"), error=4)
    Session(Children(answering(status_of(conditions=[held, broken, failing]))))._stop()
    last = capsys.readouterr().out.splitlines()[-1]
    assert last.endswith("; exit code 1: no_debt violated in 1 of 4 snapshots; odd failed on every snapshot")
    Session(Children(answering(status_of(conditions=[held]))))._stop()
    assert capsys.readouterr().out.splitlines()[-1].endswith("everything has ended")
