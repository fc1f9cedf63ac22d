"""Trial restore and invariants: a snapshot is restored into a copy to show that it can be restored (S4, E9)."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.storage.samples import frame, frontier

from strobe.invariants import GlobalState
from strobe.keyed_state import KeyedState
from strobe.process import Channel, Process, System
from strobe.protocol import ChannelSpec, Fragment, Frontier, InFlight, LocalState, Snapshot, SnapshotId, View
from strobe.protocol.values.log_entries import Begin
from strobe.runtime.recovery.trial_restore import TrialLevels, trial_restore
from strobe.storage import Store
from strobe.storage.content.state_codec import encode_captured
from strobe.storage.inspection.verification import Level, StoreLevels, Verified


class Coins(msgspec.Struct, tag=True):
    amount: int


class Account(msgspec.Struct):
    balance: int
    owners: set[str] = set()


class Branch(Process):
    def __init__(self, balance: int = 0) -> None:
        self.account = Account(balance)

    def capture(self) -> Any:
        return self.account

    def restore(self, state: Any) -> None:
        self.account = state


class Ledger(Process):
    def __init__(self) -> None:
        self.entries: KeyedState[int] = KeyedState(int)

    def capture(self) -> Any:
        return self.entries

    def restore(self, state: Any) -> None:
        self.entries = state


class Raw(Process):
    def __init__(self) -> None:
        self.bytes = b""

    def capture(self) -> Any:
        return self.bytes

    def restore(self, state: Any) -> None:
        self.bytes = state


CHANNEL = ChannelSpec("a->b", "a", "b")
FRAMES = [frame(1, {"type": "Coins", "amount": 3}, {"type": "Coins", "amount": 4})]


def total(states: Any, messages: Any) -> int:
    return int(states["a"].balance + sum(states["b"].values()) + sum(message.amount for message in messages))


def bank(**changes: Any) -> System:
    settings: dict[str, Any] = {
        "processes": {"a": Branch(), "b": Ledger(), "c": Raw()},
        "channels": [Channel("a", "b")],
        "messages": [Coins],
        "conserved": total,
    }
    return System(**{**settings, **changes})


def taken(counter: int = 1, balance: int = 10, entries: dict[str, int] | None = None, **changes: Any) -> Snapshot:
    """A snapshot of the bank: a has `balance`, b a keyed state, and of two coins in flight one is received."""
    identity = SnapshotId(1, counter, "coordinator")
    ledger: KeyedState[int] = KeyedState(int)
    ledger.update(entries or {"x": 1, "y": 2})
    states = {"a": Account(balance, {"ada", "bob", "cy"}), "b": ledger, "c": b"\x00raw"}
    ends: dict[str, tuple[dict[str, Frontier], dict[str, Frontier], dict[str, tuple[InFlight, ...]]]] = {
        "a": ({CHANNEL.id: frontier(CHANNEL, FRAMES)}, {}, {}),
        "b": (
            {},
            {CHANNEL.id: frontier(CHANNEL, [], count=1)},
            {CHANNEL.id: (InFlight(FRAMES[0], consumed=1),)},
        ),
        "c": ({}, {}, {}),
    }
    fragments = {
        name: Fragment(identity, name, 1, *ends[name], LocalState(1, *encode_captured(name, state)))
        for name, state in states.items()
    }
    whole = Snapshot(identity, "chandy-lamport", ("a",), View(1, tuple(states), (CHANNEL,)), fragments, 10, 20)
    return msgspec.structs.replace(whole, **changes)


def with_state(snapshot: Snapshot, process: str, **changes: Any) -> Snapshot:
    fragment = snapshot.fragments[process]
    state = msgspec.structs.replace(fragment.state, **changes)
    fragments = {**snapshot.fragments, process: msgspec.structs.replace(fragment, state=state)}
    return msgspec.structs.replace(snapshot, fragments=fragments)


def problems(system: System, snapshot: Snapshot) -> list[str]:
    return [str(finding) for finding in trial_restore(system, snapshot)]


def test_a_fitting_snapshot_is_restored_and_captures_the_same() -> None:
    system = bank()
    assert problems(system, taken()) == []
    assert system.processes["a"].capture().balance == 10
    assert dict(system.processes["b"].capture()) == {"x": 1, "y": 2}
    assert system.processes["c"].capture() == b"\x00raw"


def test_a_keyed_state_is_restored_through_its_deltas() -> None:
    state: KeyedState[int] = KeyedState(int)
    state.update({"x": 1, "y": 2})
    with state.freeze() as frozen:
        number, base = frozen.number, b"".join(frozen.slices())
    state["z"] = 3
    del state["x"]
    with state.freeze() as frozen:
        deltas = (b"".join(frozen.slices(number)),)
    system = bank()
    assert problems(system, with_state(taken(), "b", data=base, deltas=deltas)) == []
    assert dict(system.processes["b"].capture()) == {"y": 2, "z": 3}


class Forgetful(Branch):
    def restore(self, state: Any) -> None:
        self.account = Account(state.balance - 1, state.owners)


class Lossy(Ledger):
    def restore(self, state: Any) -> None:
        del state["x"]
        self.entries = state


class Deaf(Raw):
    def restore(self, state: Any) -> None:
        """Restore nothing."""


class Broken(Branch):
    def restore(self, state: Any) -> None:
        raise ValueError("no, thanks")


class Exiting(Branch):
    def restore(self, state: Any) -> None:
        raise SystemExit(0)


class Silent(Branch):
    def capture(self) -> Any:
        if self.account.owners:
            raise RuntimeError("not now")
        return self.account


class Changed(Branch):
    def capture(self) -> Any:
        return b"" if self.account.owners else self.account


class Emptied(Branch):
    def capture(self) -> Any:
        return None if self.account.owners else self.account


class Empty(Branch):
    def capture(self) -> Any:
        """Return nothing."""


class Renamed(Branch):
    def capture(self) -> Any:
        return Other("x") if self.account.owners else self.account


class Numbered(msgspec.Struct):
    balance: int
    owners: set[str | int] = set()
    by_number: dict[int, str] = {}


class Unsorted(Branch):
    """Its state has keys and set members of types that cannot be ordered."""

    def __init__(self, kept: int = 0) -> None:
        self.kept = kept
        self.numbered = Numbered(0)

    def capture(self) -> Any:
        return self.numbered

    def restore(self, state: Any) -> None:
        self.numbered = Numbered(state.balance + self.kept, state.owners | {1}, {1: "x"})


class Other(msgspec.Struct):
    name: str


class Strange(Branch):
    def capture(self) -> Any:
        return Other("x")


@pytest.mark.parametrize(
    ("name", "process", "problem"),
    [
        (
            "a",
            Forgetful(),
            "a: capture() after restore() gives another state: balance changed (10, then 9) [restore]",
        ),
        ("b", Lossy(), "b: capture() after restore() gives another state: ['x'] removed [restore]"),
        (
            "c",
            Deaf(),
            "c: capture() after restore() gives another state: value changed (b'\\x00raw', then b'') [restore]",
        ),
        (
            "a",
            Broken(),
            "a: restore() fails: ValueError: no, thanks (HERE, in restore()) [restore]",
        ),
        (
            "a",
            Exiting(),
            "a: restore() fails: SystemExit: 0 (HERE, in restore()) [restore]",
        ),
        (
            "a",
            Silent(),
            "a: capture() after restore() fails: RuntimeError: not now (HERE, in capture()) [restore]",
        ),
        ("a", Changed(), "a: capture() after restore() gives bytes instead of msgpack [restore]"),
        (
            "a",
            Emptied(),
            "a: capture() after restore() fails: capture() of process a returned None; "
            "return its state: a msgspec struct, a KeyedState or bytes [restore]",
        ),
        (
            "a",
            Renamed(),
            "a: capture() after restore() gives a Other, which its state is not: "
            "Object missing required field `name` [restore]",
        ),
        (
            "a",
            Strange(),
            "a: its state does not decode into what capture() returns: ValidationError: "
            "Object missing required field `name` [state]",
        ),
        (
            "a",
            Ledger(),
            "a: its state does not decode into what capture() returns: TypeError: "
            "the snapshot has msgpack, and capture() returns KeyedState [state]",
        ),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Process) else "",
)
def test_a_process_that_does_not_restore_its_state_is_named(name: str, process: Process, problem: str) -> None:
    system = bank()
    system.processes[name] = process
    found = [
        re.sub(r"tests/runtime/recovery/test_trial_restore\.py:\d+", "HERE", one) for one in problems(system, taken())
    ]
    assert found == [problem]


def test_a_state_of_none_is_not_restorable() -> None:
    snapshot = with_state(taken(), "a", data=msgspec.msgpack.encode(None))
    (found,) = problems(bank(processes={"a": Empty(), "b": Ledger(), "c": Raw()}), snapshot)
    assert "capture() of process a returned None; return its state" in found
    (found,) = problems(bank(), snapshot)
    assert "its state does not decode into what capture() returns" in found


def test_states_with_unordered_keys_are_compared() -> None:
    (found,) = problems(bank(processes={"a": Unsorted(5), "b": Ledger(), "c": Raw()}), taken())
    assert "balance changed" in found


def test_a_missing_process_is_named() -> None:
    found = problems(bank(processes={"a": Branch(), "b": Ledger()}), taken())
    assert found == ["c: this process is in the snapshot, and not in the system [topology]"]


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"channels": []}, "a->b: this channel is in the snapshot, and not in the system [topology]"),
        (
            {"channels": [Channel("a", "b"), Channel("b", "a")]},
            "b->a: this channel is in the system, and not in the snapshot [topology]",
        ),
        (
            {"channels": [Channel("b", "a", id="a->b")]},
            "a->b: is fifo from a to b, hashed by xxh3 in the snapshot, fifo from b to a, hashed by xxh3 in the system "
            "[topology]",
        ),
        (
            {"channels": [Channel("a", "b", hash="blake3")]},
            "a->b: is fifo from a to b, hashed by xxh3 in the snapshot, fifo from a to b, hashed by blake3 in the "
            "system [topology]",
        ),
        (
            {"protocol": "lai-yang"},
            "chandy-lamport: the snapshot was taken by chandy-lamport, the system runs lai-yang [protocol]",
        ),
    ],
    ids=["no channel", "new channel", "turned round", "hash", "protocol"],
)
def test_another_topology_or_protocol_is_named(changes: dict[str, Any], problem: str) -> None:
    assert problems(bank(**changes), taken()) == [problem]


def test_a_process_that_joined_later_is_no_problem() -> None:
    processes = {"a": Branch(), "b": Ledger(), "c": Raw(), "d": Raw()}
    assert problems(bank(processes=processes, channels=[Channel("a", "b"), Channel("d", "a")]), taken()) == []


class Cheque(msgspec.Struct, tag=True):
    payee: str


def test_a_message_of_another_system_is_named() -> None:
    (found,) = problems(bank(messages=[Cheque]), taken())
    assert found.startswith("a->b: the frame of message 1 cannot be decoded: Invalid value 'Coins'")


# The verification levels, on a store.


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store.create(tmp_path / "store")


def commit(store: Store, snapshot: Snapshot) -> str:
    name = str(snapshot.id)
    begin = Begin(name, 1, snapshot.protocol, ("a",), 10)
    store.append(begin, store.state().next_position)
    store.commit(name, store.write_snapshot(snapshot), store.state().next_position, at_us=30)
    return name


def verify(store: Store, name: str, level: Level, load: Callable[[], System] = bank) -> Verified:
    return TrialLevels(store, StoreLevels(store), load).verify(name, level)


def test_a_trial_restore_reports_its_work(store: Store) -> None:
    name = commit(store, taken())
    verified = verify(store, name, Level.RESTORE)
    assert verified.holds
    assert [(str(check.level), check.detail) for check in verified.checks[3:]] == [
        ("invariants", "conserved: 17 (the oldest there is)"),
        ("restore", "restored 3 processes, decoded 1 in flight"),
    ]


def test_lower_levels_do_not_run_the_system(store: Store) -> None:
    name = commit(store, taken())

    def load() -> System:
        raise AssertionError("this level needs no system")

    for level in (Level.EXISTS, Level.CHECKSUMS, Level.CAUSAL):
        assert verify(store, name, level, load).checks[-1].level is level


def test_a_conserved_value_must_equal_that_of_the_oldest_valid_snapshot(store: Store) -> None:
    first = commit(store, taken(1))
    same = commit(store, taken(2, balance=9, entries={"x": 4}))
    stolen = commit(store, taken(3, balance=11))
    assert verify(store, same, Level.INVARIANTS).checks[-1].detail == f"conserved: 17 (as in {first})"
    verified = verify(store, stolen, Level.RESTORE)
    assert [str(check.level) for check in verified.checks][-1] == "invariants"
    assert [str(finding) for finding in verified.findings] == [
        f"conserved: is 18, and was 17 in {first}, the oldest snapshot that verifies [invariant]"
    ]


def no_debt(snapshot: GlobalState) -> bool | str:
    balance = snapshot.states["a"].balance
    return balance >= 0 or f"a owes {-balance}"


def test_S4_declared_invariants_are_verified(store: Store) -> None:
    sound, broken = commit(store, taken(1)), commit(store, taken(2, balance=-1, entries={"x": 14}))

    def load() -> System:
        return bank(invariants=[no_debt, "a.balance < 11"])

    verified = verify(store, sound, Level.INVARIANTS, load)
    assert verified.checks[-1].detail == "conserved: 17 (the oldest there is); no_debt; a.balance < 11"
    verified = verify(store, broken, Level.INVARIANTS, load)
    assert [str(finding) for finding in verified.findings] == ["no_debt: a owes 1 [invariant]"]
    alone = verify(store, sound, Level.INVARIANTS, lambda: bank(conserved=None, invariants=["a.balance > 11"]))
    assert [str(finding) for finding in alone.findings] == ["a.balance > 11: a.balance = 10 [invariant]"]
    failing = verify(store, sound, Level.INVARIANTS, lambda: bank(conserved=None, invariants=[odd]))
    assert failing.findings[0].problem.startswith("fails: ZeroDivisionError")


def odd(snapshot: GlobalState) -> bool:
    return bool(1 // 0)


def test_an_oldest_snapshot_that_does_not_verify_is_skipped(store: Store) -> None:
    damaged = commit(store, taken(1, balance=99))
    second = commit(store, taken(2))
    ref = store.state().committed[damaged].manifest.processes["a"].state
    (Path(store.url) / f"blobs/{ref.begin:020d}/{ref.blake3}").unlink()
    assert verify(store, second, Level.INVARIANTS).checks[-1].detail == "conserved: 17 (the oldest there is)"


def test_a_system_without_an_invariant_holds(store: Store) -> None:
    name = commit(store, taken())
    verified = verify(store, name, Level.INVARIANTS, lambda: bank(conserved=None))
    assert verified.holds
    assert "no invariant to check" in verified.checks[-1].detail


def test_an_invariant_that_fails_is_named(store: Store) -> None:
    name = commit(store, taken())
    verified = verify(store, name, Level.INVARIANTS, lambda: bank(conserved=lambda states, messages: 1 // 0))
    assert verified.verdict == "violated"
    assert verified.findings[0].problem.startswith("fails: ZeroDivisionError")


def test_processes_that_would_join_are_reported(store: Store) -> None:
    name = commit(store, taken())
    processes = {"a": Branch(), "b": Ledger(), "c": Raw(), "d": Raw()}
    verified = verify(store, name, Level.RESTORE, lambda: bank(processes=dict(processes)))
    assert verified.checks[-1].detail.endswith("not in it, and would join as new: d")
