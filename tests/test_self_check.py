"""A system is checked before it runs: every mistake in capture and restore is reported with its place (E13)."""

import threading
from pathlib import Path
from typing import Any

import msgspec
import pytest

from strobe.declarations import Waits
from strobe.errors import UsageError, UserCodeFailed
from strobe.invariants import GlobalState
from strobe.keyed_state import KeyedState
from strobe.process import Process, System
from strobe.protocol import Fragment, LocalState, Snapshot, SnapshotId, View
from strobe.self_check import Restores, check_process, check_system, decoded_again
from strobe.storage.content.state_codec import encode_captured
from strobe.user_code import explain

HERE = "tests/test_self_check.py"


class Account(msgspec.Struct):
    balance: int = 0


class Branch(Process):
    def __init__(self, balance: int = 0) -> None:
        self.balance = balance

    def capture(self) -> Any:
        return Account(self.balance)

    def restore(self, state: Any) -> None:
        self.balance = state.balance


class Ledger(Branch):
    def __init__(self) -> None:
        self.entries: KeyedState[Account] = KeyedState(Account)
        self.entries["ada"] = Account(5)

    def capture(self) -> Any:
        return self.entries

    def restore(self, state: Any) -> None:
        self.entries = state


class NoRestore(Branch):
    restore = Process.restore


class NoCapture(Branch):
    capture = Process.capture


class Raising(Branch):
    def restore(self, state: Any) -> None:
        raise ValueError("no")


class Changing(Branch):
    def restore(self, state: Any) -> None:
        self.balance = state.balance + 1


class Lying(Branch):
    def capture(self) -> Any:
        return Account("five")  # type: ignore[arg-type]


class Opaque(Branch):
    def capture(self) -> Any:
        return Account(object())  # type: ignore[arg-type]


class Late(Branch):
    def __init__(self) -> None:
        pass  # its balance is set in start()


class Waiting(Branch):
    def waits_for(self) -> Waits | None:
        return ["b"]  # type: ignore[return-value]


class Exiting(Branch):
    def restore(self, state: Any) -> None:
        raise SystemExit(3)


def mistakes(process: Process, **options: Any) -> list[str]:
    return [mistake.problem for mistake in check_system(System({"a": process}, [], **options)).mistakes]


@pytest.mark.parametrize("process", [Branch(5), Ledger()], ids=["struct", "keyed"])
def test_a_sound_process_has_no_mistakes_and_is_not_touched(process: Branch) -> None:
    before = dict(vars(process))
    assert mistakes(process, conserved=lambda states, messages: len(states)) == []
    assert vars(process) == before


@pytest.mark.parametrize(
    ("process", "message"),
    [
        (NoRestore(), "NoRestore has capture() but no restore(): a rollback could not put its state back (tests/test_"),
        (NoCapture(), "NoCapture has no capture(): return its state, or b'' if it has none"),
        (Raising(), "Raising.restore (tests/test_self_check.py:"),
        (Changing(3), "capture() after restore() gives another state: balance changed (3, then 4)"),
        (Lying(), "cannot be decoded again: ValidationError: Expected `int`, got `str` - at `$.balance`"),
        (Opaque(), "cannot be encoded: Account.balance: object"),
        (Late(), "Late.capture fails, called before start(): AttributeError"),
        (Waiting(), "what Waiting declares: waits_for() of process 'a' returns ['b']"),
        (Exiting(), "restore() fails: SystemExit: 3 (tests/test_self_check.py:"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Process) else "",
)
def test_each_mistake_is_named(process: Process, message: str) -> None:
    (found,) = mistakes(process)
    assert message in found


def test_the_copies_are_restored_and_never_the_process_itself() -> None:
    touched: list[Process] = []

    class Watched(Branch):
        def restore(self, state: Any) -> None:
            touched.append(self)
            super().restore(state)

    process = Watched()
    assert mistakes(process) == []
    assert len(touched) == 1
    assert touched[0] is not process


def test_a_process_that_cannot_be_copied_is_captured_and_not_restored() -> None:
    class Locked(Raising):
        def __init__(self) -> None:
            super().__init__()
            self.lock = threading.Lock()

    system = System({"a": Locked()}, [])
    checked = check_system(system)
    assert checked.mistakes == ()
    assert checked.unchecked[0].startswith("Locked.restore of process 'a' (it cannot be copied: TypeError")
    Locked.capture = Opaque.capture  # type: ignore[method-assign]
    assert "Account.balance: object" in check_process(system, "a").mistakes[0].problem


def test_a_conserved_function_that_fails_is_a_mistake() -> None:
    (found,) = mistakes(Branch(), conserved=lambda states, messages: 1 // 0)
    assert found.startswith("the function `conserved` of the system (")
    assert f"{Path(__file__).name}:" in found
    assert "ZeroDivisionError" in found


def test_a_conserved_function_that_returns_nothing_is_a_mistake() -> None:
    (found,) = mistakes(Branch(), conserved=lambda states, messages: None)
    assert "returned None; return the value that must not change" in found


def test_an_invariant_that_fails_or_returns_nothing_is_a_mistake() -> None:
    def fails(snapshot: GlobalState) -> bool:
        return bool(1 // 0)

    def forgets(snapshot: GlobalState) -> Any:
        pass

    first, second = mistakes(Branch(), invariants=[fails, forgets])
    assert first.startswith("the invariant fails: ZeroDivisionError")
    assert f"{Path(__file__).name}:{fails.__code__.co_firstlineno + 1}, in fails()" in first
    assert "returned None; return True if it holds, else False or a text that explains" in second


def test_a_condition_on_an_unknown_field_is_a_mistake_with_its_place() -> None:
    (found,) = mistakes(Branch(), invariants=["1 < 2 and a.balnce >= 0"])
    assert "column 11: the state of a (Account) has no field 'balnce'; did you mean 'balance'?" in found


def test_an_invariant_need_not_hold_before_the_start() -> None:
    def is_rich(snapshot: GlobalState) -> bool:
        return bool(snapshot.states["a"].balance > 5)

    assert mistakes(Branch(5), invariants=["a.balance > 5", is_rich]) == []


def test_the_same_mistake_of_several_processes_is_named_once() -> None:
    system = System({name: NoRestore() for name in "abcde"}, [])
    with pytest.raises(UserCodeFailed, match=r"^processes 'a', 'b', 'c' and 2 more: NoRestore has capture") as failed:
        check_system(system).require_sound()
    assert "\n" not in str(failed.value)


def snapshot(state: Any) -> Snapshot:
    identity = SnapshotId(1, 1, "a")
    local = LocalState(4, *encode_captured("a", state))
    fragment = Fragment(identity, "a", 1, {}, {}, {}, local)
    return Snapshot(identity, "chandy-lamport", ("a",), View(1, ("a",), ()), {"a": fragment})


def test_a_field_that_restore_forgets_shows_in_a_later_state() -> None:
    class Forgetful(Branch):
        def restore(self, state: Any) -> None:
            pass

    system = System({"a": Forgetful()}, [])
    assert check_system(system).mistakes == ()
    restores = Restores(system)
    restores.check(snapshot(Account(0)))
    with pytest.raises(UserCodeFailed, match=r"Forgetful.restore \(.*after event 4: .*balance changed \(7, then 0\)"):
        restores.check(snapshot(Account(7)))


def test_the_state_of_a_program_with_its_own_loop_is_decoded_again() -> None:
    local, state = decoded_again("a", lambda: Account(5))
    assert state == Account(5)
    assert local.data == msgspec.msgpack.encode(Account(5))
    with pytest.raises(
        UserCodeFailed, match=rf"^process 'a': `capture` \({HERE}:\d+\): the Account that capture\(\) returns is"
    ):
        decoded_again("a", lambda: Account("five"))  # type: ignore[arg-type]
    for value, culprit in (
        (Account([object()]), r"Account.balance\[0\]: object"),  # type: ignore[arg-type]
        ({"x": [{"y": {object()}}]}, r"dict\['x'\]\[0\]\['y'\] member <object.*>: object"),
    ):
        with pytest.raises(
            UserCodeFailed, match=rf"^process 'a': `capture` \({HERE}:\d+\): .*cannot be encoded: {culprit}"
        ):
            decoded_again("a", lambda value=value: value)  # type: ignore[misc]
    with pytest.raises(UserCodeFailed, match=rf"^process 'a': `capture` \({HERE}:\d+\): it fails: ZeroDivisionError"):
        decoded_again("a", lambda: 1 // 0)


def test_a_value_of_a_keyed_state_that_cannot_be_encoded_is_named_where_it_is_set() -> None:
    state: KeyedState[Any] = KeyedState(Any)
    with pytest.raises(
        UsageError, match=r"key 'ada': a dict cannot be encoded: dict\['history'\]\[0\]: object"
    ) as raised:
        state["ada"] = {"history": [object()]}
    assert f"({HERE}:" in explain(raised.value)


def test_a_state_that_contains_itself_is_named() -> None:
    state: dict[str, Any] = {"parts": [1]}
    state["parts"].append(state)

    class Circular(Branch):
        def capture(self) -> Any:
            return state

    (found,) = mistakes(Circular())
    assert "cannot be encoded: dict['parts'][1]: dict (it contains itself)" in found


def test_a_capture_that_changes_the_state_is_named() -> None:
    class Draining(Branch):
        def __init__(self) -> None:
            self.waiting = [1, 2]

        def capture(self) -> Any:
            taken, self.waiting = self.waiting, []
            return taken

        def restore(self, state: Any) -> None:
            self.waiting = state

    (found,) = mistakes(Draining())
    assert found.startswith(f"Draining.capture ({HERE}:")
    assert found.endswith("capture(), called twice, gives different states: [0] removed, [1] removed")
    later = System({"a": Draining()}, [])
    with pytest.raises(UserCodeFailed, match=r"after event 4: after restore\(\), capture\(\), called twice, gives"):
        Restores(later).check(snapshot([7]))
