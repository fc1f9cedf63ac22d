"""A fragment on disk: deltas, reused blobs, and the thread that hashes values (E4, E5)."""

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.runtime.link_ends import run, until
from tests.runtime.lone_node import abort, committed, lone_node, until_handled

from strobe.keyed_state import Frozen, KeyedState
from strobe.protocol import SnapshotId
from strobe.protocol.coordinator.messages import (
    RequestRecording,
)
from strobe.runtime.messages.control import ProcessRecorded
from strobe.runtime.node import fragment_writer
from strobe.storage.content.blobs import BlobWriter, blob_name, digest_of


def test_E5_a_keyed_state_is_written_as_a_delta_on_the_committed_one(tmp_path: Path) -> None:
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


def test_E5_after_a_bounded_chain_of_deltas_the_full_state_is_written(tmp_path: Path) -> None:
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


def test_E5_the_full_state_is_written_if_deltas_exceed_half_of_it(tmp_path: Path) -> None:
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


def test_E4_slices_are_bounded_while_the_disk_is_busy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made, gate = [], threading.Event()
    slices, append = Frozen.slices, BlobWriter.append

    def counted(frozen: Frozen, since: int | None = None) -> Iterator[bytes]:
        for piece in slices(frozen, since):
            made.append(piece)
            yield piece

    def delayed(blob: BlobWriter, piece: bytes) -> None:
        assert gate.wait(20)
        append(blob, piece)

    monkeypatch.setattr(Frozen, "slices", counted)
    monkeypatch.setattr(BlobWriter, "append", delayed)
    monkeypatch.setattr(fragment_writer, "WRITING_MAX", 3)

    async def scenario() -> None:
        async with lone_node(tmp_path) as node:
            state: KeyedState[bytes] = KeyedState(bytes)
            state.update((number, bytes(1000)) for number in range(3000))
            node.process.capture = lambda: state  # type: ignore[method-assign]
            begun = await node.recorded(1)
            node.source.mark(1)
            await until(lambda: len(made) == 3)
            await until_handled(node)
            assert len(made) == 3
            gate.set()
            record = (await node.coordinator.stored("b", begun.snapshot)).record
            assert len(made) > 6
            assert dict(KeyedState.from_segments([bytes(node.coordinator.store.read_blob(record.state))], bytes)) == {
                number: bytes(1000) for number in range(3000)
            }

    run(scenario())


def test_E4_large_values_are_hashed_off_the_event_loop_in_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """E4: a value of many megabytes is one slice. Hashing it on the event loop would block the loop."""
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
    assert {(size > fragment_writer.HASHED_ON_LOOP_MAX, on_loop) for size, on_loop in hashed} == {
        (True, False),
        (False, True),
    }


def test_S2_an_unchanged_plain_state_reuses_its_parents_blob(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with lone_node(tmp_path) as node:
            first = (await committed(node, 1)).record
            second = (await committed(node, 2)).record
            assert second.state == first.state
            node.source.send(1)
            await node.received(1)
            third = (await committed(node, 3)).record
            assert third.state != first.state
            path = Path(node.coordinator.store.url) / blob_name(third.state)
            assert path.is_file()

    run(scenario())


def test_E4_changes_after_the_cut_are_not_in_the_snapshot(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with lone_node(tmp_path) as node:
            state: KeyedState[list[int]] = KeyedState(list[int])
            state["a"] = [1]
            node.process.capture = lambda: state  # type: ignore[method-assign]
            node.link.send(RequestRecording("b", SnapshotId(3, 1, "a"), 1))
            await node.link.handle(ProcessRecorded)
            state["a"] = [2]
            node.source.mark(1)
            node.link.send(node.begin_snapshot(1))
            part = await node.coordinator.stored("b", SnapshotId(3, 1, "a"))
            data = bytes(node.coordinator.store.read_blob(part.record.state))
            assert dict(KeyedState.from_segments([data], list[int])) == {"a": [1]}

    run(scenario())
