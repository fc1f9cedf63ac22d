"""A node's state belongs to one log: the node names the newest entry that it knows, and the log must have it (S1)."""

import asyncio
from pathlib import Path

import pytest
from tests.runtime.fake_nodes import Running, both_alive, committed, running
from tests.storage.samples import begin

from strobe.errors import StoreError
from strobe.protocol.coordinator.messages import RestoreState
from strobe.protocol.values.log_entries import EntryRef, EpochStart
from strobe.runtime.messages.control import HeartbeatHeard, Refused, Welcome
from strobe.storage import Store
from strobe.storage.checkpoints import checkpoint_writer
from strobe.storage.entries.log_file import entry_name
from strobe.storage.log.log import EntryMatch
from strobe.storage.store.optimistic_append import begin_term
from strobe.storage.store.repair import fence_off

OTHER = "0" * 64


async def admitted(coordinator: Running, newest: EntryRef | None, epoch: int = 1, term: int = 1) -> Refused | None:
    """Register the process a with its state and the newest entry it knows; return the refusal, or None."""
    node = await coordinator.node("a", epoch=epoch, term=term, newest=newest)
    answer = await node.handle(Welcome | Refused)
    return answer if isinstance(answer, Refused) else None


def test_S1_nodes_receive_the_newest_entry_and_register_with_it(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(tmp_path / "store") as coordinator:
            a, b = await both_alive(coordinator)
            await committed(coordinator, a, b)
            a.beat()
            newest = (await a.handle(HeartbeatHeard)).newest
            assert newest is not None
            assert newest == coordinator.coordinator.store.last_entry
            assert newest.position == Store.open(tmp_path / "store").state().next_position - 1
        async with running(tmp_path / "store") as coordinator:
            assert await admitted(coordinator, newest) is None
            assert coordinator.coordinator.lifecycle.epoch == 1

    asyncio.run(scenario())


def test_S1_the_order_to_begin_an_epoch_names_an_entry_of_it(tmp_path: Path) -> None:
    """Without it, a node that ran on a copy for a moment knows only entries that the real log has, too."""

    async def scenario() -> None:
        async with running(tmp_path / "store") as coordinator:
            a = await coordinator.node("a")
            await coordinator.node("b")
            order = await a.start_as_ordered()
            start = next(
                at for at, entry in Store.open(tmp_path / "store").read_log(0) if isinstance(entry, EpochStart)
            )
            assert order.newest is not None
            assert order.newest.position >= start

    asyncio.run(scenario())


@pytest.mark.parametrize(("epoch", "term"), [(1, 1), (1, 99), (7, 1), (7, 99)])
def test_S1_a_node_of_another_history_is_refused_for_good(tmp_path: Path, epoch: int, term: int) -> None:
    """S1: whatever its epoch and term are: they may be higher in the copy."""

    async def scenario() -> None:
        async with running(tmp_path / "store") as coordinator:
            await both_alive(coordinator)
            refused = await admitted(coordinator, EntryRef(1, OTHER), epoch, term)
            assert refused is not None
            assert refused.final
            assert "entry 1 of the log is not the one that this process knows" in refused.reason

    asyncio.run(scenario())


def test_S1_a_process_that_knows_a_later_entry_waits_for_its_store(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(tmp_path / "store") as coordinator:
            await both_alive(coordinator)
            refused = await admitted(coordinator, EntryRef(1000, OTHER))
            assert refused is not None
            assert not refused.final
            assert "the store is an older copy; put the newer one back" in refused.reason

    asyncio.run(scenario())


def aged(directory: Path) -> Store:
    """Append terms of other coordinators to the log, and write a checkpoint."""
    store = Store(Store.open(directory).backend, checkpoint_every=4)
    for term in range(8):
        begin_term(store, f"here {term}", 0)
    store.write_checkpoint()
    return store


async def admitted_finally(coordinator: Running, newest: EntryRef) -> Refused | None:
    """Retry the registration while the log is searched; return the refusal, or None."""
    while (refused := await admitted(coordinator, newest)) is not None and "the log is searched" in refused.reason:
        assert not refused.final
    return refused


@pytest.mark.parametrize("held", [True, False, None], ids=["held", "other", "removed"])
def test_S1_an_entry_before_the_checkpoint_is_looked_up_in_its_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, held: bool | None
) -> None:
    """S1: the coordinator starts after it. If it was removed, there is no proof that the node knows this log."""
    monkeypatch.setattr(checkpoint_writer, "EVERY", 4)

    async def scenario() -> None:
        async with running(tmp_path / "store") as coordinator:
            await both_alive(coordinator)
        store = aged(tmp_path / "store")
        known = store.entry_ref(2) if held is not False else EntryRef(2, OTHER)
        if held is None:
            store.backend.remove([entry_name(position) for position in range(3)])
        async with running(tmp_path / "store") as coordinator:
            refused = await admitted_finally(coordinator, known)
            assert (refused is None) == bool(held)
            if refused is not None:
                problem = "was removed from the log since" if held is None else "is not the one that this process knows"
                assert problem in refused.reason
                assert refused.final

    asyncio.run(scenario())


def test_S1_a_process_that_has_missed_a_rollback_is_not_compared(tmp_path: Path) -> None:
    """R1: its state is replaced anyway."""

    async def scenario() -> None:
        async with running(tmp_path / "store") as coordinator:
            a, _ = await both_alive(coordinator)
            await a.close()
            again = await coordinator.node("a")
            await again.handle(RestoreState)
            await again.close()
            await coordinator.until(lambda: not coordinator.coordinator.members.get("a").connected)
            assert coordinator.coordinator.lifecycle.epoch == 2
            assert await admitted(coordinator, EntryRef(1, OTHER), epoch=1) is None

    asyncio.run(scenario())


def test_S1_an_unreadable_log_gives_no_final_refusal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """S1: nor admits it: an admitted node is given a newer entry, which would hide its real history."""
    monkeypatch.setattr(checkpoint_writer, "EVERY", 4)

    async def scenario() -> None:
        async with running(tmp_path / "store") as coordinator:
            await both_alive(coordinator)
        store = aged(tmp_path / "store")
        known = store.entry_ref(2)
        async with running(tmp_path / "store") as coordinator:
            backend = coordinator.coordinator.store.log.store.backend
            monkeypatch.setattr(backend, "read", broken)
            for _ in range(3):
                refused = await admitted(coordinator, known)
                assert refused is not None
                assert not refused.final
            monkeypatch.undo()
            assert await admitted_finally(coordinator, known) is None

    asyncio.run(scenario())


def broken(name: str, bytes_max: int = 0) -> bytes:
    raise StoreError("here", f"cannot read {name}: Input/output error")


def test_S1_a_fenced_off_entry_matches_any_known_entry(tmp_path: Path) -> None:
    store = Store.create(tmp_path / "store")
    begin(store, 1)
    begin(store, 2)
    known = store.entry_ref(1)
    (tmp_path / "store" / entry_name(1)).write_bytes(b"damaged")
    fence_off(Store.open(store.url).backend, 1, "a test", 0)
    reader = Store.open(store.url)
    list(reader.read_log())
    assert reader.find(known) is EntryMatch.HELD
    assert reader.find(EntryRef(1, OTHER)) is EntryMatch.HELD
    assert reader.find(EntryRef(0, OTHER)) is EntryMatch.OTHER
