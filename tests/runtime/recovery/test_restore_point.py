"""Which snapshots can be restored: topology, protocol, timeline, released output."""

from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.storage.samples import VIEW, begin, commit, sample

from strobe.process import Process, System
from strobe.protocol import View
from strobe.protocol.coordinator.messages import RestoreRefused, SnapshotChosen
from strobe.protocol.values.log_entries import Departure, EpochStart
from strobe.runtime.recovery import restore_point
from strobe.runtime.recovery.restore_point import Topology, choose, timeline
from strobe.storage import Store
from strobe.storage.store.retention import remove

HERE = Topology("chandy-lamport", (VIEW,))


class Note(msgspec.Struct, tag=True):
    text: str


class Shorter(msgspec.Struct):
    """The message from a to b in the samples, with its field renamed."""

    total: int = 0


class Unknown(Process):
    """Stands for a program with its own loop, whose state only the program itself can decode."""


def start(store: Store, epoch: int, restored: str | None, fork: bool = False) -> None:
    store.append(EpochStart(epoch, 0, restored, fork=fork), store.state().next_position)


def test_R1_the_timeline_follows_the_restored_snapshot_of_each_epoch(tmp_path: Path) -> None:
    store = Store.create(tmp_path / "store")
    start(store, 1, None)
    first, second = commit(store, sample(1)), commit(store, sample(2))
    assert timeline(store.state()) == [second, first]
    start(store, 2, first)
    assert timeline(store.state()) == [first]
    third = commit(store, sample(1, epoch=2))
    assert timeline(store.state()) == [third, first]
    start(store, 3, None)
    assert timeline(store.state()) == []
    assert choose(store, None, HERE).event == SnapshotChosen(None, None)
    # An operator may switch to another timeline by naming a snapshot.
    assert choose(store, second, HERE).event == SnapshotChosen(second, VIEW)


@pytest.mark.parametrize(
    ("topology", "reason"),
    [
        (Topology("lai-yang", (VIEW,)), "was taken by chandy-lamport, and the system runs lai-yang"),
        (Topology("chandy-lamport", (View(1, ("a", "b"), VIEW.channels),)), "the system has no process c"),
        (
            Topology("chandy-lamport", (View(1, VIEW.processes, VIEW.channels[:2]),)),
            r"the system has no channel b~>c \(unordered, xxh3\)",
        ),
    ],
)
def test_E9_a_snapshot_of_another_topology_is_refused(tmp_path: Path, topology: Topology, reason: str) -> None:
    store = Store.create(tmp_path / "store")
    name = commit(store, sample(1))
    event = choose(store, name, topology).event
    assert isinstance(event, RestoreRefused)
    with pytest.raises(AssertionError, match=reason):
        raise AssertionError(event.reason)


def test_R1_the_newest_is_chosen_even_if_a_member_has_left_since(tmp_path: Path) -> None:
    """The leave is no reason to undo more."""
    store = Store.create(tmp_path / "store")
    start(store, 1, None)
    name = commit(store, sample(1))
    without_c = Topology("chandy-lamport", (View(1, ("a", "b"), VIEW.channels[:1]),))
    assert choose(store, None, without_c).event == SnapshotChosen(name, VIEW)


def test_R2_only_a_fork_goes_below_output_of_a_departed_process(tmp_path: Path) -> None:
    store = Store.create(tmp_path / "store")
    start(store, 1, None)
    earlier = commit(store, sample(1))
    name = begin(store, 2)
    manifest = msgspec.structs.replace(store.write_snapshot(sample(2)), departed={"d": Departure({"audit": 70})})
    store.commit(name, manifest, store.state().next_position, 30)
    event = choose(store, earlier, HERE).event
    assert isinstance(event, RestoreRefused)
    assert "lies below released output: sink audit of process d has released 70 more since" in event.reason
    assert choose(store, earlier, HERE, fork=True).event == SnapshotChosen(earlier, VIEW)


def committed(
    store: Store, counter: int, a: int | None = None, gone: int | None = None, epoch: int = 1, joined: int = 0
) -> str:
    """Commit a snapshot in which process a has output up to position `a`, or has left with output up to `gone`."""
    name = begin(store, counter, None, epoch)
    manifest = store.write_snapshot(sample(counter, epoch))
    processes, departed = dict(manifest.processes), {}
    if gone is not None:
        del processes["a"]
        departed["a"] = Departure({"out": gone}, joined=joined)
    else:
        processes["a"] = msgspec.structs.replace(processes["a"], sinks={"out": a})
    memberships = {"a": joined} if joined and gone is None else {}
    manifest = msgspec.structs.replace(manifest, processes=processes, departed=departed, joined=memberships)
    store.commit(name, manifest, store.state().next_position, 30)
    return name


def refusal(store: Store, name: str, topology: Topology = HERE) -> str:
    event = choose(store, name, topology).event
    return event.reason if isinstance(event, RestoreRefused) else ""


@pytest.mark.parametrize("earlier", [3, 79])
def test_R2_a_rejoin_is_not_covered_by_earlier_output(tmp_path: Path, earlier: int) -> None:
    store = Store.create(tmp_path / "store")
    start(store, 1, None)
    before, left = committed(store, 1, a=earlier), committed(store, 2, gone=earlier)
    again = committed(store, 3, a=3, joined=3)
    for name in (before, left):
        assert "sink out of process a has released 3 more since" in refusal(store, name)
    assert refusal(store, again) == ""


@pytest.mark.parametrize("removed", [False, True])
@pytest.mark.parametrize(
    ("released", "reason"), [(3, "released 3 more since"), (0, "of an earlier membership of process a")]
)
def test_E9_restoring_an_earlier_membership_with_output_needs_a_fork(
    tmp_path: Path, removed: bool, released: int, reason: str
) -> None:
    """The process has another output file by now and could not continue: the whole system would be stopped."""
    store = Store.create(tmp_path / "store")
    start(store, 1, None)
    nothing, before, left = committed(store, 1, a=0), committed(store, 2, a=79), committed(store, 3, gone=79)
    committed(store, 4, a=released, joined=3)
    if removed:
        remove(store, left, "retention", 0)
    now = msgspec.structs.replace(HERE, joined={"a": 3, "b": 0, "c": 0})
    assert reason in refusal(store, before, now)
    assert "released output" in refusal(store, nothing, now)
    assert choose(store, before, now, fork=True).event == SnapshotChosen(before, VIEW)


@pytest.mark.parametrize("in_it", [{"a": 10}, {"gone": 10}], ids=["there", "left"])
def test_R2_an_abandoned_snapshot_without_its_base_is_restorable(tmp_path: Path, in_it: dict[str, int]) -> None:
    store = Store.create(tmp_path / "store")
    start(store, 1, None)
    oldest, base, abandoned = committed(store, 1, a=3), committed(store, 2, a=10), committed(store, 3, **in_it)
    start(store, 2, base)
    committed(store, 1, a=10, epoch=2)
    assert "released output" not in refusal(store, abandoned)
    for name in (base, oldest):
        remove(store, name, "retention", 0)
        assert "released output" not in refusal(store, abandoned)


def test_R2_a_process_that_left_twice_has_output_of_both_memberships(tmp_path: Path) -> None:
    store = Store.create(tmp_path / "store")
    start(store, 1, None)
    left = [committed(store, 1, gone=70), committed(store, 2, gone=70)]
    assert "released output" not in refusal(store, left[0])
    committed(store, 3, gone=30, joined=3)
    for name in left:
        assert "sink out of process a has released 30 more since" in refusal(store, name)


def test_R2_an_undone_departure_continues_the_same_membership(tmp_path: Path) -> None:
    """If it had left without releasing more output, the snapshot can still be restored."""
    store = Store.create(tmp_path / "store")
    start(store, 1, None)
    base, abandoned = committed(store, 1, a=50), committed(store, 2, gone=50)
    start(store, 2, base)
    committed(store, 1, a=50, epoch=2)
    assert "released output" not in refusal(store, abandoned)
    committed(store, 2, a=51, epoch=2)
    assert "sink out of process a has released 1 more since" in refusal(store, abandoned)


class Balance(Process):
    """Its state has another type than that of b in the samples."""

    def capture(self) -> Any:
        return 1

    def restore(self, state: Any) -> None: ...


class Account(msgspec.Struct):
    """The state of b in the samples, with its field renamed."""

    amount: int = 0


class Renamed(Balance):
    def capture(self) -> Any:
        return Account()


class Forgetful(Balance):
    """Decodes the state of b in the samples, but restores nothing of it."""

    def capture(self) -> Any:
        return {"balance": 1}


@pytest.mark.parametrize(
    ("processes", "messages", "reason"),
    [
        ({"b": Renamed()}, (), "`Account.balance` is in the data, and Account has no such field"),
        ({"b": Forgetful()}, (), "is refused by process b: capture() after restore() gives another state: balance"),
        ({}, (Shorter,), "`list[0].amount` is in the data, and Shorter has no such field"),
        ({"b": Balance()}, (), "is of another schema: the state of process 'b' does not fit"),
        ({}, (Note,), "is of another schema: what was in flight does not fit: channel a->b, at b"),
    ],
)
def test_E9_a_named_snapshot_of_another_schema_is_refused(
    tmp_path: Path, processes: dict[str, Process], messages: tuple[type, ...], reason: str
) -> None:
    store = Store.create(tmp_path / "store")
    start(store, 1, None)
    name = commit(store, sample(1))
    system = System(processes={"a": Unknown(), "b": Unknown(), **processes}, channels=[], messages=messages)
    event = choose(store, name, HERE, system=system).event
    assert isinstance(event, RestoreRefused)
    assert reason in event.reason
    # After a crash, no older snapshot is chosen instead: the process itself reports that it cannot be restored.
    assert choose(store, None, HERE, system=system).event == SnapshotChosen(name, VIEW)


def test_E9_an_unknown_snapshot_is_refused(tmp_path: Path) -> None:
    store = Store.create(tmp_path / "store")
    event = choose(store, "000001-00000009-coordinator", HERE).event
    assert isinstance(event, RestoreRefused)
    assert "there is no such snapshot" in event.reason


def test_E9_an_inconsistent_snapshot_is_refused(tmp_path: Path) -> None:
    store = Store.create(tmp_path / "store")
    whole = sample(1)
    fragment = whole.fragments["a"]
    sent = {name: msgspec.structs.replace(end, count=end.count + 1) for name, end in fragment.sent.items()}
    whole.fragments["a"] = msgspec.structs.replace(fragment, sent=sent)
    event = choose(store, commit(store, whole), HERE).event
    assert isinstance(event, RestoreRefused)
    assert "is inconsistent: a->b" in event.reason


class Choosy(Process):
    """Decodes the state of b in the samples, but refuses to restore it."""

    def __init__(self, refusal: BaseException) -> None:
        self.refusal = refusal

    def capture(self) -> Any:
        return {"balance": 1}

    def restore(self, state: Any) -> None:
        raise self.refusal


@pytest.mark.parametrize("refusal", [ValueError("this ledger is closed"), SystemExit("this ledger is closed")])
def test_E9_a_named_snapshot_a_process_rejects_is_refused(tmp_path: Path, refusal: BaseException) -> None:
    store = Store.create(tmp_path / "store")
    start(store, 1, None)
    name = commit(store, sample(1))
    system = System(processes={"a": Unknown(), "b": Choosy(refusal)}, channels=[])
    event = choose(store, name, HERE, system=system).event
    assert isinstance(event, RestoreRefused)
    assert "this ledger is closed" in event.reason


def test_E9_a_snapshot_removed_during_its_check_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = Store.create(tmp_path / "store")
    start(store, 1, None)
    name, _ = commit(store, sample(1)), commit(store, sample(2))

    def verified_slowly(*_: Any) -> None:
        remove(Store.open(store.url), name, "by hand", 1)

    monkeypatch.setattr(restore_point, "_unverified", verified_slowly)
    system = System(processes={"a": Unknown(), "b": Unknown()}, channels=[])
    event = choose(store, name, HERE, system=system).event
    assert isinstance(event, RestoreRefused)
    assert "removed" in event.reason


def test_R2_only_a_fork_restores_what_a_fork_abandoned(tmp_path: Path) -> None:
    """Output continues in the file of the fork; `latest` is the snapshot that it began from, not the abandoned one."""
    store = Store.create(tmp_path / "store")
    start(store, 1, None)
    first, second = commit(store, with_sink(1)), commit(store, with_sink(2))
    start(store, 2, first, fork=True)
    assert choose(store, "latest", HERE).event == SnapshotChosen(first, VIEW)
    event = choose(store, second, HERE).event
    assert isinstance(event, RestoreRefused)
    assert "was abandoned by the fork of epoch 2" in event.reason
    assert choose(store, second, HERE, fork=True).event == SnapshotChosen(second, VIEW)


def with_sink(counter: int) -> Any:
    snapshot = sample(counter)
    fragment = snapshot.fragments["a"]
    state = msgspec.structs.replace(fragment.state, sinks={"out": 100 * counter})
    fragments = {**snapshot.fragments, "a": msgspec.structs.replace(fragment, state=state)}
    return msgspec.structs.replace(snapshot, fragments=fragments)
