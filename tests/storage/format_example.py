"""The worked example of docs/format.md, made by the real code: `python -m tests.storage.format_example` prints it."""

import sys
import tempfile
from pathlib import Path

import msgspec
from tests.storage.samples import commit, frame, sample_id, snapshot_of

from strobe.protocol.values.fragment import MSGPACK, OPAQUE, LocalState, Snapshot
from strobe.protocol.values.frames import Frontier, InFlight, extend_fifo, seed_hash
from strobe.protocol.values.log_entries import BlobRef, Manifest, Term
from strobe.protocol.values.view import ChannelSpec, View
from strobe.storage import Store

TITLE = "## A worked example"

CHANNEL = ChannelSpec("a->b", "a", "b")
FIRST = frame(1, 1, 2)
SECOND = frame(3, "x")


def example_hashes() -> list[bytes]:
    """Return h(0), h(1) and h(2) of the channel."""
    seed = seed_hash(CHANNEL.id, CHANNEL.incarnation)
    first = extend_fifo(seed, FIRST.first_ordinal, FIRST.count, FIRST.body)
    return [seed, first, extend_fifo(first, SECOND.first_ordinal, SECOND.count, SECOND.body)]


def example_snapshot() -> Snapshot:
    """Process a has sent two frames, and b has received one message of the first."""
    hashes = example_hashes()
    return snapshot_of(
        sample_id(1),
        View(1, ("a", "b"), (CHANNEL,)),
        sent={"a": {CHANNEL.id: Frontier(3, hashes[2])}, "b": {}},
        received={"a": {}, "b": {CHANNEL.id: Frontier(1, hashes[0])}},
        in_flight={"a": {}, "b": {CHANNEL.id: (InFlight(FIRST, consumed=1), InFlight(SECOND))}},
        states={
            "a": LocalState(3, MSGPACK, msgspec.msgpack.encode({"n": 3})),
            "b": LocalState(1, OPAQUE, b"ok"),
        },
    )


def build(root: Path) -> Manifest:
    store = Store.create(root, identity="00112233445566778899aabbccddeeff")
    store.append(Term(1, "alpha pid 4711", at_us=5), 0)
    snapshot = commit(store, example_snapshot())
    return store.state().committed[snapshot].manifest


def render() -> str:
    with tempfile.TemporaryDirectory() as directory:
        root = Path(directory) / "store"
        manifest = build(root)
        lines = [TITLE, *_story(), ""]
        for name in ("strobe.json", *(f"log/{position:020d}.json" for position in range(3))):
            lines += [f"`{name}`:", "```json", (root / name).read_text().rstrip("\n"), "```"]
        lines += _blobs(root, manifest) + _proof(manifest)
        return "\n".join(lines) + "\n"


def _story() -> list[str]:
    return [
        "A coordinator has started, and has taken one snapshot.",
        "Two processes and one fifo channel `a->b`. a has sent three messages in two frames, `[1, 2]` and `['x']`. b",
        "was stopped by a breakpoint after the first message: both are channel state, the first with `consumed` 1.",
        "These files are written by `tests/storage/format_example.py`, and a test compares them with this page.",
    ]


def _blobs(root: Path, manifest: Manifest) -> list[str]:
    a, b = manifest.processes["a"], manifest.processes["b"]
    assert b.frames is not None
    frames = _bytes(root, b.frames)
    rows = [
        (0, 8, "first_ordinal 1"),
        (8, 12, "count 2"),
        (12, 16, "consumed 1"),
        (16, 24, "body_bytes 3"),
        (24, 27, "body: array of 2, 1, 2"),
        (27, 35, "first_ordinal 3"),
        (35, 39, "count 1"),
        (39, 43, "consumed 0"),
        (43, 51, "body_bytes 3"),
        (51, 54, 'body: array of 1, "x"'),
    ]
    assert rows[-1][1] == len(frames)
    return [
        "",
        "The blobs, in `blobs/00000000000000000001/`:",
        "```",
        *(
            f"{ref.blake3}  {_bytes(root, ref).hex(' ')}  {what}"
            for ref, what in ((a.state, "state of a"), (b.state, "state of b"))
        ),
        f"{b.frames.blake3}  frames of b:",
        *(f"  {start:>2}  {frames[start:end].hex(' '):<23}  {what}" for start, end, what in rows),
        "```",
    ]


def _bytes(root: Path, ref: BlobRef) -> bytes:
    return (root / f"blobs/{ref.begin:020d}/{ref.blake3}").read_bytes()


def _proof(manifest: Manifest) -> list[str]:
    seed, first, second = example_hashes()
    sent, received = manifest.processes["a"].sent["a->b"], manifest.processes["b"].received["a->b"]
    return [
        "",
        "The proof:",
        "```",
        f"h(0) = {seed.hex()} = H( 61 2d 3e 62 00 01 00 00 00 00 00 00 00 )",
        f"h(1) = {first.hex()} = H( h(0) 01 00 00 00 00 00 00 00 02 00 00 00 {FIRST.body.hex(' ')} )",
        f"h(2) = {second.hex()} = H( h(1) 03 00 00 00 00 00 00 00 01 00 00 00 {SECOND.body.hex(' ')} )",
        f"received  count {received.count}, hash {received.hash} = h(0): no frame was received to its end",
        f"in flight 2 frames, (2 - 1) + (1 - 0) = 2 messages; {received.count} + 2 = {sent.count}",
        f"sent      count {sent.count}, hash {sent.hash} = h(2)",
        "```",
    ]


if __name__ == "__main__":
    sys.stdout.write(render())
