"""The proof of a stored snapshot, against reading its bytes once; and that it grows with the bytes and no faster."""

import os
import tempfile
from pathlib import Path

from bench.figures import Figure, at_most, cpu_s, interleaved, shown, wall_s
from strobe.causality.proof import verify
from strobe.protocol import FIFO, ChannelSpec, Fragment, Frontier, InFlight, LocalState, Snapshot, SnapshotId, View
from strobe.protocol.channels import Outgoing
from strobe.protocol.log import Begin
from strobe.storage import Store

COMMAND = "python -m bench proof"
_MESSAGES, _MESSAGE_BYTES = 256, 100
_READ_BYTES = 1 << 20


def _snapshot(number: int, in_flight_bytes: int) -> Snapshot:
    """Return a snapshot with this much in flight on one channel: frames of 256 messages of 100 bytes."""
    spec = ChannelSpec("a->b", "a", "b", FIFO)
    view = View(1, ("a", "b"), (spec,))
    sender = Outgoing(spec)
    seed = sender.frontier()
    message = b"\xc4" + bytes((_MESSAGE_BYTES - 2,)) + os.urandom(_MESSAGE_BYTES - 2)
    body = b"\xdc" + _MESSAGES.to_bytes(2, "big") + message * _MESSAGES
    frames = tuple(InFlight(sender.seal(_MESSAGES, body, 0, 1)) for _ in range(in_flight_bytes // len(body)))
    snapshot, state = SnapshotId(1, number, "coordinator"), LocalState(1, "bytes", b"")
    fragments = {
        "a": Fragment(snapshot, "a", 1, {"a->b": sender.frontier()}, {}, {}, state),
        "b": Fragment(snapshot, "b", 1, {}, {"a->b": Frontier(0, seed.hash)}, {"a->b": frames}, state),
    }
    return Snapshot(snapshot, "chandy-lamport", ("a",), view, fragments)


def _store(path: Path, sizes: list[int]) -> tuple[Store, list[str]]:
    store, ids = Store.create(str(path)), []
    for number, size in enumerate(sizes, 1):
        snapshot = _snapshot(number, size)
        ids.append(str(snapshot.id))
        position = store.state().next_position
        store.append(Begin(ids[-1], 1, "chandy-lamport", ("a",), 0), position)
        store.commit(ids[-1], store.write_snapshot(snapshot), position + 1, 0)
    return store, ids


def _read(path: Path, snapshot_bytes: int) -> None:
    """Read the blobs of about this size once."""
    buffer = bytearray(_READ_BYTES)
    for file in path.rglob("*"):
        if file.is_file() and abs(file.stat().st_size - snapshot_bytes) < snapshot_bytes // 10:
            with file.open("rb", buffering=0) as stream:
                while stream.readinto(buffer):
                    pass


def measure() -> list[Figure]:
    sizes = [250_000_000, 500_000_000, 1_000_000_000]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "store"
        store, ids = _store(path, sizes)

        def prove(number: int) -> None:
            verdict = verify(store.load(ids[number]))
            assert verdict.holds, verdict

        for number, size in enumerate(sizes):  # once, so that every measure finds the same bytes in memory
            prove(number)
            _read(path, size)
        prove_s, read_s = interleaved(
            5, lambda: wall_s(lambda: prove(2)), lambda: wall_s(lambda: _read(path, sizes[2]))
        )
        prove_cpu, read_cpu = interleaved(
            5, lambda: cpu_s(lambda: prove(2)), lambda: cpu_s(lambda: _read(path, sizes[2]))
        )
        small_s, large_s = interleaved(5, lambda: wall_s(lambda: prove(0)), lambda: wall_s(lambda: prove(2)))
    return [
        at_most("proof of 1 GB in flight, checksums too, against reading it", prove_s / read_s, "x wall", 2, COMMAND),
        shown("the same in processor time", prove_cpu / read_cpu, "x CPU", COMMAND),
        shown("proof of 1 GB in flight", 1.0 / prove_s, "GB/s", COMMAND),
        at_most("proof, four times the bytes", large_s / small_s, "x wall", 5, COMMAND),
    ]
