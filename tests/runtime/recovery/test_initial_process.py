"""A process is reset to its initial state, whether it can be copied or not."""

import threading

import msgspec
import pytest

from strobe import Process
from strobe.errors import UsageError
from strobe.keyed_state import KeyedState
from strobe.runtime.recovery.initial_process import InitialProcess


class Count(msgspec.Struct):
    number: int = 0


class Counting(Process):
    def __init__(self) -> None:
        self.count = Count(7)
        self.uncaptured = ["first"]

    def run(self) -> None:
        self.count.number += 1
        self.uncaptured.append("more")

    def capture(self) -> Count:
        return self.count

    def restore(self, state: Count) -> None:
        self.count = state


class Locked(Counting):
    """It cannot be copied."""

    def __init__(self) -> None:
        super().__init__()
        self.lock = threading.Lock()


class Late(Locked):
    """It has no state before it starts."""

    def capture(self) -> Count:
        raise AttributeError("no count yet")


class Keeping(Process):
    def __init__(self) -> None:
        self.kept: KeyedState[int] = KeyedState(int)
        self.kept["first"] = 1

    def capture(self) -> KeyedState[int]:
        return self.kept


def test_a_process_can_be_reset_repeatedly() -> None:
    process: Process = Counting()
    beginning = InitialProcess("a", process)
    for _ in range(3):
        assert isinstance(process, Counting)
        process.run()
        process = beginning.reset(process)
        assert type(process) is Counting
        assert (process.count, process.uncaptured) == (Count(7), ["first"])


def test_a_keyed_state_is_reset_and_not_shared() -> None:
    process: Process = Keeping()
    beginning = InitialProcess("a", process)
    for _ in range(2):
        assert isinstance(process, Keeping)
        process.kept["first"], process.kept["second"] = 5, 6
        process = beginning.reset(process)
        assert isinstance(process, Keeping)
        assert dict(process.kept.items()) == {"first": 1}


def test_a_process_that_cannot_be_copied_restores_its_first_state() -> None:
    process = Locked()
    beginning = InitialProcess("a", process)
    for _ in range(2):
        process.run()
        assert beginning.reset(process) is process
        assert process.count == Count(7)


def test_a_process_that_can_neither_be_copied_nor_captured_is_refused() -> None:
    with pytest.raises(UsageError, match=r"process 'a' .* cannot be copied .*lock.*no count yet.*Late a __deepcopy__"):
        InitialProcess("a", Late())
