"""A process's part of a snapshot: where its blobs go, what fails with it, and that nothing is left (E3, E4, E7)."""

import asyncio
import gc
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.runtime.fake_coordinator import Link
from tests.runtime.link_ends import run, until
from tests.runtime.lone_node import LoneNode, lone_node
from tests.runtime.scripted import Memory

from strobe.keyed_state import Frozen, KeyedState
from strobe.protocol import SnapshotId
from strobe.protocol.coordinator.messages import (
    AskToRecord,
    Drained,
    RecordingFailed,
    SnapshotStarted,
    TellOutcome,
    TellSettled,
    TellView,
)
from strobe.runtime.messages.control import FragmentStored, ProcessRecorded
from strobe.runtime.node import captures
from strobe.storage.content.blobs import BlobWriter, blob_name, digest_of


async def heard_everything(node: LoneNode) -> None:
    """Wait until the node has done all that it was told before."""
    node.link.send(TellView("b", node.coordinator.view))
    await node.link.handle(Drained)


async def until_idle(node: LoneNode) -> None:
    """Wait until the writer thread has done all that it was given."""
    await node.host.writer.run(lambda: None)


def unfinished(node: LoneNode) -> list[Path]:
    return list((Path(node.coordinator.store.url) / "tmp").iterdir())


def abort(node: LoneNode, snapshot: SnapshotId) -> None:
    node.link.send(TellOutcome("b", snapshot, False, "a test says so"))


async def committed(node: LoneNode, counter: int) -> FragmentStored:
    """Have snapshot `counter` stored and committed, as far as b is concerned."""
    begun = await node.recorded(counter)
    node.source.mark(counter)
    part = await node.coordinator.stored("b", begun.snapshot)
    node.link.send(TellOutcome("b", begun.snapshot, True))
    node.coordinator.newest = str(begun.snapshot)
    await heard_everything(node)
    return part


def test_a_part_is_stored_when_the_log_has_the_begin_and_not_before(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with lone_node(tmp_path) as node:
            node.source.mark(1)  # it comes before the coordinator's word
            recorded = await node.link.handle(ProcessRecorded)
            await heard_everything(node)
            await until_idle(node)
            assert not node.link.said(FragmentStored)
            begun = node.begin_snapshot(1)
            node.link.send(begun)
            part = await node.coordinator.stored("b", begun.snapshot)
            assert recorded.snapshot == begun.snapshot
            assert part.record.state.begin == begun.position
            assert part.record.received["a->b"].count == 0

    run(scenario())


def test_a_snapshot_that_the_process_initiates_waits_for_its_place_too(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with lone_node(tmp_path) as node:
            node.process.on_receive = lambda ctx, channel, message: ctx.snapshot() and None
            node.source.send("first", "second")
            started = [await node.link.handle(SnapshotStarted) for _ in range(2)]
            assert [one.snapshot.initiator for one in started] == ["b", "b"]
            assert started[0].snapshot != started[1].snapshot
            # The first cut fell inside the frame.
            begun = node.coordinator.log_begin("b", snapshot=started[0].snapshot)
            node.link.send(begun)
            inside = node.timeline.protocol.open[begun.snapshot].frames["a->b"]
            assert [item.consumed for item in inside] == [1]
            # The other one is refused: nothing is kept for it.
            abort(node, started[1].snapshot)
            await heard_everything(node)
            assert list(node.timeline.captures.open) == [started[0].snapshot]

    run(scenario())


async def initiated_unheard(node: LoneNode) -> tuple[SnapshotId, Link]:
    """Have b initiate a snapshot while it has no connection; return which, and the connection that comes then."""
    lost = node.link
    lost.writer.close()
    await until(lambda: not node.host._link.connected)
    own = node.timeline.name_snapshot(0)
    node.timeline.initiate(own, None)
    return SnapshotId.parse(own), await node.coordinator.registered("b", after=lost)


def test_a_snapshot_that_nobody_heard_of_is_told_of_also_where_others_have_begun_meanwhile(tmp_path: Path) -> None:
    """The process itself drops it, as all that lies before what is open now; the others hold what they recorded."""

    async def scenario() -> None:
        async with lone_node(tmp_path) as node:
            view, (own, returned) = node.coordinator.view, await initiated_unheard(node)
            returned.send(TellSettled("b", own.counter + 1), TellView("b", view))
            started = await returned.handle(SnapshotStarted)
            assert started == SnapshotStarted(own, "b", view.number)

    run(scenario())


def test_a_snapshot_that_the_process_initiates_while_nobody_hears_it_is_told_of_on_return(tmp_path: Path) -> None:
    """Its peers have recorded, too: they would hold what they recorded until they lose patience."""

    async def scenario() -> None:
        async with lone_node(tmp_path) as node:
            view, (own, returned) = node.coordinator.view, await initiated_unheard(node)
            returned.send(TellView("b", view))
            await returned.handle(Drained)  # before that, the coordinator could not take it on
            started = await returned.handle(SnapshotStarted)
            assert started == SnapshotStarted(own, "b", view.number)
            # What has begun is known.
            begun = node.coordinator.log_begin("b", snapshot=started.snapshot)
            returned.send(begun, TellView("b", view))
            await returned.handle(Drained)
            returned.send(TellView("b", view))
            await returned.handle(Drained)
            assert returned.said(SnapshotStarted) == [started]

    run(scenario())


@pytest.mark.parametrize("keyed", [False, True])
@pytest.mark.parametrize("finished", [False, True])
@pytest.mark.parametrize("begun", [False, True])
def test_nothing_is_left_of_an_aborted_snapshot(tmp_path: Path, keyed: bool, finished: bool, begun: bool) -> None:
    async def scenario() -> None:
        async with lone_node(tmp_path) as node:
            state: KeyedState[int] = KeyedState(int)
            state["a"] = 1
            if keyed:
                node.process.capture = lambda: state  # type: ignore[method-assign]
            snapshot = SnapshotId(3, 1, "a")
            if begun:
                node.link.send(node.begin_snapshot(1))
            node.link.send(AskToRecord("b", snapshot, 1))
            await until(lambda: snapshot in node.timeline.captures.open)
            if finished:
                node.source.mark(1)
                await until(lambda: not node.timeline.protocol.open)
            abort(node, snapshot)
            await heard_everything(node)
            await until_idle(node)
            assert not node.timeline.captures.open
            assert not node.timeline.protocol.open
            assert not unfinished(node)
            state["a"] = 2
            assert not any(view.next_shard == 0 for view in state._entries.views)  # nothing is put aside for it
            gc.collect()  # a task whose failure nobody has seen would say so now, and end the node
            assert node.host.problem is None

    run(scenario())


def test_a_blob_that_was_being_opened_when_its_snapshot_was_aborted_is_not_left_open(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with lone_node(tmp_path) as node:
            state: KeyedState[int] = KeyedState(int)
            node.process.capture = lambda: state  # type: ignore[method-assign]
            opening, opened = threading.Event(), threading.Event()
            open_blob = node.host.writer.open_blob

            def open_slowly(begin: int) -> Any:
                opening.set()
                assert opened.wait(20)
                return open_blob(begin)

            node.host.writer.open_blob = open_slowly  # type: ignore[method-assign]
            begun = await node.recorded()
            await until(opening.is_set)
            abort(node, begun.snapshot)
            await heard_everything(node)
            opened.set()
            await until_idle(node)
            assert not unfinished(node)

    run(scenario())


def test_E7_what_has_no_outcome_for_too_long_is_freed(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with lone_node(tmp_path, patience_s=0.02) as node:
            first, second = node.ask(1), node.ask(2)
            node.source.mark(2)  # of the one the recording is open, the other is finished
            await until(lambda: second.snapshot in node.timeline.protocol.closed)
            await until(lambda: not node.timeline.captures.open)
            assert not node.timeline.protocol.open
            # Late word of them does no harm.
            node.source.mark(1)
            node.link.send(AskToRecord("b", first.snapshot, 1), TellOutcome("b", second.snapshot, True))
            await heard_everything(node)
            assert not node.timeline.captures.open

    run(scenario())


def test_what_is_settled_is_freed(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with lone_node(tmp_path) as node:
            await node.recorded(1)
            await node.recorded(2)
            third = await node.recorded(3)
            node.source.mark(2)
            await until(lambda: len(node.timeline.protocol.open) == 2)
            node.link.send(TellSettled("b", 3))
            await heard_everything(node)
            assert list(node.timeline.captures.open) == [third.snapshot]
            assert list(node.timeline.captures._begun) == [third.snapshot]

    run(scenario())


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (KeyError("balance"), "KeyError: 'balance'"),
        (OSError("caf\udce9"), r"OSError: caf\udce9"),
        (SystemExit(3), "SystemExit: 3"),
        (GeneratorExit(), "GeneratorExit"),
        (asyncio.CancelledError(), "CancelledError"),
    ],
)
def test_E3_a_capture_that_fails_costs_the_snapshot_and_not_the_process(
    tmp_path: Path, error: BaseException, told: str
) -> None:
    async def scenario() -> None:
        async with lone_node(tmp_path) as node:

            def capture() -> Any:
                raise error

            whole = node.process.capture
            node.process.capture = capture  # type: ignore[method-assign]
            begun = node.ask(1)
            failed = await node.link.handle(RecordingFailed)
            assert failed.snapshot == begun.snapshot
            assert f"its state cannot be captured: {told}" in failed.reason
            assert f"{Path(__file__).name}:" in failed.reason
            await until(lambda: not node.timeline.protocol.open)
            # The marker that comes back finds nothing to do.
            node.source.mark(1)
            node.source.send(1)
            await node.received(1)
            node.process.capture = whole  # type: ignore[method-assign]
            second = await node.recorded(2)
            node.source.mark(2)
            await node.coordinator.stored("b", second.snapshot)

    run(scenario())


def test_a_capture_that_returns_nothing_costs_the_snapshot_and_is_told(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with lone_node(tmp_path) as node:
            node.process.capture = lambda: None  # type: ignore[method-assign]
            node.ask(1)
            failed = await node.link.handle(RecordingFailed)
            told = "its state cannot be captured: capture() of process b returned None; return its state"
            assert told in failed.reason
            assert not node.link.said(ProcessRecorded)

    run(scenario())


def test_a_state_that_cannot_be_encoded_costs_the_snapshot_and_not_the_process(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with lone_node(tmp_path) as node:
            node.process.memory = Memory(received=[("a", object())])
            node.source.mark(1)  # recorded and finished in one step
            failed = await node.link.handle(RecordingFailed)
            assert "object" in failed.reason
            node.source.send(1)
            await until(lambda: len(node.process.messages) == 2)
            assert node.host.problem is None

    run(scenario())


def test_a_failure_in_the_background_is_told_and_told_again_when_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any) -> None:
        raise RuntimeError("a bug")

    monkeypatch.setattr(captures, "pack_frames", fail)

    async def scenario() -> None:
        async with lone_node(tmp_path) as node:
            begun = await node.recorded()
            node.source.mark(1)
            assert "a bug" in (await node.link.handle(RecordingFailed)).reason
            node.link.send(AskToRecord("b", begun.snapshot, 1))
            assert "a bug" in (await node.link.handle(RecordingFailed)).reason
            abort(node, begun.snapshot)
            await heard_everything(node)
            gc.collect()
            assert node.host.problem is None

    run(scenario())


def test_E5_the_next_snapshot_of_a_keyed_state_is_a_delta_on_the_committed_one(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with lone_node(tmp_path) as node:
            state: KeyedState[int] = KeyedState(int)
            for number in range(1000):
                state[f"key {number}"] = number
            node.process.capture = lambda: state  # type: ignore[method-assign]
            first = (await committed(node, 1)).record
            state["key 1"] = -1
            aborted = await node.recorded(2)
            abort(node, aborted.snapshot)
            del state["key 2"]
            third = (await committed(node, 3)).record
            assert (third.state, len(third.deltas)) == (first.state, 1)
            assert third.deltas[0].bytes < first.state.bytes / 10
            segments = [bytes(node.coordinator.store.read_blob(ref)) for ref in (third.state, *third.deltas)]
            assert dict(KeyedState.from_segments(segments, int)) == dict(state)

    run(scenario())


def test_E5_a_chain_of_deltas_is_bounded_and_then_everything_is_written_anew(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with lone_node(tmp_path, delta_chain_max=2) as node:
            state: KeyedState[int] = KeyedState(int)
            state.update((f"key {number}", number) for number in range(1000))
            node.process.capture = lambda: state  # type: ignore[method-assign]
            chains = []
            for counter in range(1, 7):
                state["key 1"] = -counter
                record = (await committed(node, counter)).record
                chains.append(len(record.deltas))
                segments = [bytes(node.coordinator.store.read_blob(ref)) for ref in (record.state, *record.deltas)]
                assert dict(KeyedState.from_segments(segments, int)) == dict(state)
            assert chains == [0, 1, 2, 0, 1, 2]

    run(scenario())


def test_E5_everything_is_written_anew_where_deltas_come_to_more_than_half_of_it(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with lone_node(tmp_path) as node:
            state: KeyedState[int] = KeyedState(int)
            node.process.capture = lambda: state  # type: ignore[method-assign]
            chains = []
            for counter in range(1, 4):
                state.update((f"key {number}", counter) for number in range(1000))
                chains.append(len((await committed(node, counter)).record.deltas))
            assert chains == [0, 1, 0]

    run(scenario())


def test_E4_slices_are_made_while_the_disk_is_busy_and_do_not_pile_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made, gate = [], threading.Event()
    slices, append = Frozen.slices, BlobWriter.append

    def counted(frozen: Frozen, since: int | None = None) -> Iterator[bytes]:
        for piece in slices(frozen, since):
            made.append(piece)
            yield piece

    def held(blob: BlobWriter, piece: bytes) -> None:
        assert gate.wait(20)
        append(blob, piece)

    monkeypatch.setattr(Frozen, "slices", counted)
    monkeypatch.setattr(BlobWriter, "append", held)
    monkeypatch.setattr(captures, "WRITING_MAX", 3)

    async def scenario() -> None:
        async with lone_node(tmp_path) as node:
            state: KeyedState[bytes] = KeyedState(bytes)
            state.update((number, bytes(1000)) for number in range(3000))
            node.process.capture = lambda: state  # type: ignore[method-assign]
            begun = await node.recorded(1)
            node.source.mark(1)
            await until(lambda: len(made) == 3)
            await heard_everything(node)
            assert len(made) == 3
            gate.set()
            record = (await node.coordinator.stored("b", begun.snapshot)).record
            assert len(made) > 6
            assert dict(KeyedState.from_segments([bytes(node.coordinator.store.read_blob(record.state))], bytes)) == {
                number: bytes(1000) for number in range(3000)
            }

    run(scenario())


def test_E4_large_values_are_hashed_beside_the_loop_and_everything_in_its_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """E4: a value of many megabytes is one slice, and would hold the loop for as long as its hash takes."""
    hashed: list[tuple[int, bool]] = []
    appended: list[bytes] = []
    hash_piece, append = BlobWriter.hash, BlobWriter.append

    def watched_hash(blob: BlobWriter, piece: bytes) -> None:
        hashed.append((len(piece), threading.current_thread() is threading.main_thread()))
        hash_piece(blob, piece)

    def watched_append(blob: BlobWriter, piece: bytes) -> None:
        appended.append(piece)
        append(blob, piece)

    monkeypatch.setattr(BlobWriter, "hash", watched_hash)
    monkeypatch.setattr(BlobWriter, "append", watched_append)
    sizes = {number: 2_000_000 if number % 100 == 50 else 1000 for number in range(1000)}

    async def scenario() -> None:
        async with lone_node(tmp_path) as node:
            state: KeyedState[bytes] = KeyedState(bytes)
            state.update((number, bytes([number % 251]) * size) for number, size in sizes.items())
            node.process.capture = lambda: state  # type: ignore[method-assign]
            begun = await node.recorded(1)
            node.source.mark(1)
            ref = (await node.coordinator.stored("b", begun.snapshot)).record.state
            data = bytes(node.coordinator.store.read_blob(ref))
            assert (ref.blake3, data) == (digest_of([data]), b"".join(appended))
            assert dict(KeyedState.from_segments([data], bytes)) == dict(state)

    run(scenario())
    assert [size for size, _ in hashed] == [len(piece) for piece in appended]
    assert {(size > captures.HASHED_ON_LOOP_MAX, on_loop) for size, on_loop in hashed} == {(True, False), (False, True)}


def test_S2_a_plain_state_that_has_not_changed_is_its_parents_blob(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with lone_node(tmp_path) as node:
            first = (await committed(node, 1)).record
            second = (await committed(node, 2)).record
            assert second.state == first.state
            node.source.send(1)
            await node.received(1)
            third = (await committed(node, 3)).record
            assert third.state != first.state
            place = Path(node.coordinator.store.url) / blob_name(third.state)
            assert place.is_file()

    run(scenario())


def test_E4_what_changes_after_the_cut_is_not_in_the_snapshot(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with lone_node(tmp_path) as node:
            state: KeyedState[list[int]] = KeyedState(list[int])
            state["a"] = [1]
            node.process.capture = lambda: state  # type: ignore[method-assign]
            node.link.send(AskToRecord("b", SnapshotId(3, 1, "a"), 1))
            await node.link.handle(ProcessRecorded)
            state["a"] = [2]
            node.source.mark(1)
            node.link.send(node.begin_snapshot(1))
            part = await node.coordinator.stored("b", SnapshotId(3, 1, "a"))
            data = bytes(node.coordinator.store.read_blob(part.record.state))
            assert dict(KeyedState.from_segments([data], list[int])) == {"a": [1]}

    run(scenario())
