"""The proof of a stored snapshot, against reading its bytes once; and whether its cost is linear in the bytes."""

import os
import tempfile
from pathlib import Path

from bench.figures import Figure, at_most, cpu_s, interleaved, shown
from strobe.causality.proof import verify
from strobe.protocol import FIFO, ChannelSpec, Fragment, Frontier, InFlight, LocalState, Snapshot, SnapshotId, View
from strobe.protocol.process.channels import Outgoing
from strobe.protocol.values.log_entries import Begin
from strobe.storage import Store

COMMAND = "python -m bench proof"
_MESSAGE_BYTES = 100
_SMALL_FRAME, _LARGE_FRAME = 256, 640  # messages: 25 KB, and the 64 KB that a busy connection writes at once
_READ_BYTES = 1 << 20


def _snapshot(number: int, in_flight_bytes: int, messages: int) -> Snapshot:
    """Return a snapshot with this much in flight on one channel, in frames of `messages` messages of 100 bytes."""
    spec = ChannelSpec("a->b", "a", "b", FIFO)
    view = View(1, ("a", "b"), (spec,))
    sender = Outgoing(spec)
    seed = sender.frontier()
    message = b"\xc4" + bytes((_MESSAGE_BYTES - 2,)) + os.urandom(_MESSAGE_BYTES - 2)
    body = b"\xdc" + messages.to_bytes(2, "big") + message * messages
    frames = tuple(InFlight(sender.seal(messages, body, 0, 1)) for _ in range(in_flight_bytes // len(body)))
    snapshot, state = SnapshotId(1, number, "coordinator"), LocalState(1, "bytes", b"")
    fragments = {
        "a": Fragment(snapshot, "a", 1, {"a->b": sender.frontier()}, {}, {}, state),
        "b": Fragment(snapshot, "b", 1, {}, {"a->b": Frontier(0, seed.hash)}, {"a->b": frames}, state),
    }
    return Snapshot(snapshot, "chandy-lamport", ("a",), view, fragments)


def _store(path: Path, sizes: list[tuple[int, int]]) -> tuple[Store, list[str]]:
    store, ids = Store.create(str(path)), []
    for number, (size, messages) in enumerate(sizes, 1):
        snapshot = _snapshot(number, size, messages)
        ids.append(str(snapshot.id))
        position = store.state().next_position
        store.append(Begin(ids[-1], 1, "chandy-lamport", ("a",), 0), position)
        store.commit(ids[-1], store.write_snapshot(snapshot), position + 1, 0)
    return store, ids


def _read(path: Path) -> None:
    """Read a file once, into a reused buffer: nothing reads faster."""
    buffer = bytearray(_READ_BYTES)
    with path.open("rb", buffering=0) as stream:
        while stream.readinto(buffer):
            pass


def measure() -> list[Figure]:
    quarter, whole = 250_000_000, 1_000_000_000
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "store"
        store, ids = _store(path, [(quarter, _LARGE_FRAME), (whole, _LARGE_FRAME), (whole, _SMALL_FRAME)])
        largest = max((file for file in path.rglob("*") if file.is_file()), key=lambda file: file.stat().st_size)

        def prove(number: int, checksums: bool = False) -> None:
            verdict = verify(store.load(ids[number], checksums=checksums))
            assert verdict.holds, verdict

        for number in range(3):  # warm-up, so that every measure finds the same bytes in memory
            prove(number)
        _read(largest)
        proof, small_frames, checked, read, smaller = interleaved(
            7,
            lambda: cpu_s(lambda: prove(1)),
            lambda: cpu_s(lambda: prove(2)),
            lambda: cpu_s(lambda: prove(1, checksums=True)),
            lambda: cpu_s(lambda: _read(largest)),
            lambda: cpu_s(lambda: prove(0)),
        )
    return [
        at_most("proof of 1 GB in flight, against reading it once", proof / read, "x CPU", 2, COMMAND),
        shown("the same in frames of 25 KB instead of 64 KB", small_frames / read, "x CPU", COMMAND),
        shown("the same with the checksum of every blob", checked / read, "x CPU", COMMAND),
        shown("proof of 1 GB in flight", 1 / proof, "GB/CPU s", COMMAND),
        at_most("proof of four times the bytes: linear", proof / smaller, "x CPU", 4.5, COMMAND),
    ]
