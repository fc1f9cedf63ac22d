"""What the watchdog reports of a thread: from real frames, at given times."""

import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

from strobe import Process
from strobe.handlers import call
from strobe.user_code import running_call, users_frames
from strobe.watchdog import CallWatch, LongCall

Look = Callable[[FrameType], Any]


def settle(look: Look) -> Any:
    return look(sys._getframe())


class Branch(Process):
    """Its `restore` is a function that is inside `settle` when the watchdog looks."""

    def restore(self, state: Look) -> None:
        settle(state)


def while_restoring(look: Look, branch: Branch | None = None) -> None:
    call(branch or Branch(), "restore", look)


def looks(watch: CallWatch, frame: FrameType, times: int, elapsed_s: float = 1.0, turns: object = 0) -> list[Any]:
    return [watch.look(frame, elapsed_s, turns) for _ in range(times)]


def test_a_running_call_is_named_by_the_function_that_strobe_called() -> None:
    branch, found = Branch(), []
    while_restoring(lambda frame: found.append(running_call(frame, *users_frames(frame) or ())), branch)
    (running,) = found
    assert (running.owner, running.function) == (branch, "Branch.restore()")
    line = settle.__code__.co_firstlineno + 1
    assert running.describe("b") == f"Branch.restore() of b at tests/test_watchdog.py:{line} in settle()"
    assert running.describe("").startswith("Branch.restore() at tests/")
    stack = running.stack.splitlines()
    assert [text.split()[-1] for text in stack[::2]] == ["restore", "settle"]
    assert "settle(state)" in stack[1]


def test_strobes_own_code_is_no_call_of_the_user() -> None:
    frame: FrameType | None = sys._getframe()
    assert users_frames(None) is None
    while frame is not None and users_frames(frame) is not None:  # pytest is installed, and not the user's code
        frame = frame.f_back
    assert frame is not None


def test_a_call_is_reported_after_its_time_and_then_less_and_less_often() -> None:
    watch = CallWatch(5.0)

    def look(frame: FrameType) -> None:
        reports = looks(watch, frame, 200)
        reported = [(place, found.running_s) for place, found in enumerate(reports) if found is not None]
        assert reported == [(5, 5.0), (10, 10.0), (20, 20.0), (40, 40.0), (80, 80.0), (140, 140.0)]
        assert watch.current is not None
        assert watch.current.running_s == 199.0

    while_restoring(look)


def test_the_end_of_a_reported_call_is_reported_once() -> None:
    watch = CallWatch(2.0)
    while_restoring(lambda frame: looks(watch, frame, 4))
    other: list[LongCall | None] = []
    while_restoring(lambda frame: other.extend(looks(watch, frame, 2)))
    assert [(found.running_s, found.ended) for found in other if found is not None] == [(3.0, True)]
    assert watch.current is None
    while_restoring(lambda frame: other.extend(looks(watch, frame, 2)))
    assert len([found for found in other if found is not None]) == 1  # this one was not reported, so its end is not


def test_many_short_calls_are_no_long_one() -> None:
    watch = CallWatch(2.0)
    for _ in range(20):
        while_restoring(lambda frame: [None for found in looks(watch, frame, 1) if found is None].pop())
    assert watch.current is None


def test_a_coroutine_that_was_suspended_counts_from_its_last_step() -> None:
    watch = CallWatch(2.0)

    def look(frame: FrameType) -> None:
        assert looks(watch, frame, 2, turns=1) == [None, None]
        assert looks(watch, frame, 2, turns=2) == [None, None]
        (found,) = looks(watch, frame, 1, turns=2)
        assert found.running_s == 2.0

    while_restoring(look)


def test_nothing_is_reported_while_no_code_of_the_user_runs() -> None:
    watch = CallWatch(2.0)
    assert [watch.look(None, 1.0) for _ in range(9)] == [None] * 9
