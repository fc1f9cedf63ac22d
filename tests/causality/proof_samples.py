"""Snapshots for the tests of proofs."""

from typing import Any

import msgspec
from hypothesis import strategies as st
from tests.protocol.playbook import body, snapshot_id

from strobe.causality.proof import verify
from strobe.protocol import FIFO, UNORDERED, ChannelSpec, Fragment, InFlight, Snapshot, View
from strobe.protocol.process.channels import Incoming, Outgoing
from strobe.protocol.values.frames import BLAKE3, XXH3

S1 = snapshot_id(1)


replace = msgspec.structs.replace


class Ends:
    """Both ends of one channel, and the frames between them at the cut."""

    def __init__(self, spec: ChannelSpec, sizes: list[int], received: int, order: list[int], consumed: int) -> None:
        outgoing, incoming = Outgoing(spec), Incoming(spec)
        frames = [
            outgoing.seal(size, body(*(f"{spec.id}.{place}.{part}" for part in range(size))), 0, 1)
            for place, size in enumerate(sizes)
        ]
        frames = [frames[place] for place in order]
        for frame in frames[:received]:
            incoming.accept(frame, spec.target)
        self.sent, at = outgoing.frontier(), incoming.frontier()
        rest = [InFlight(frame) for frame in frames[received:]]
        if consumed and rest:
            consumed %= rest[0].frame.count
            rest[0] = replace(rest[0], consumed=consumed)
            at = replace(at, count=at.count + consumed)
        self.received, self.in_flight = at, tuple(rest)


def assemble(of: View, ends: dict[str, Ends]) -> Snapshot:
    fragments = {
        process: Fragment(
            S1,
            process,
            of.number,
            {spec.id: ends[spec.id].sent for spec in of.outgoing(process)},
            {spec.id: ends[spec.id].received for spec in of.incoming(process)},
            {spec.id: ends[spec.id].in_flight for spec in of.incoming(process)},
        )
        for process in of.processes
    }
    return Snapshot(S1, "chandy-lamport", (), of, fragments)


@st.composite
def snapshots(draw: st.DrawFn) -> Snapshot:
    """Valid snapshots of any topology, with frames received, in flight and partly consumed."""
    processes = ("p", "q", "r")[: draw(st.integers(1, 3))]
    end = st.sampled_from(processes)
    what = st.sampled_from([(FIFO, XXH3), (FIFO, BLAKE3), (UNORDERED, XXH3)])
    drawn = draw(st.lists(st.tuples(end, end, what), min_size=1, max_size=4))
    channels = (ChannelSpec(f"c{n}", p, q, kind, hash=name) for n, (p, q, (kind, name)) in enumerate(drawn))
    of = View(3, processes, tuple(channels))
    ends = {}
    for spec in of.channels:
        sizes = draw(st.lists(st.integers(1, 3), max_size=5))
        places = list(range(len(sizes)))
        order = places if spec.kind == FIFO else draw(st.permutations(places))
        ends[spec.id] = Ends(spec, sizes, draw(st.integers(0, len(sizes))), order, draw(st.integers(0, 2)))
    return assemble(of, ends)


def sample(kind: str = FIFO, consumed: int = 0, hashed_by: str = XXH3) -> Snapshot:
    """p has sent q six messages in four frames, of which q has received the first; one of two channels back is
    unused.
    """
    pq = ChannelSpec("pq", "p", "q", kind, hash=hashed_by)
    of = View(1, ("p", "q"), (pq, ChannelSpec("qp", "q", "p"), ChannelSpec("idle", "q", "p")))
    return assemble(
        of,
        {
            "pq": Ends(of.channels[0], [1, 2, 1, 2], 1, [0, 1, 2, 3], consumed),
            "qp": Ends(of.channels[1], [1], 1, [0], 0),
            "idle": Ends(of.channels[2], [], 0, [], 0),
        },
    )


def with_fragment(whole: Snapshot, process: str, /, **changes: Any) -> Snapshot:
    fragment = replace(whole.fragments[process], **changes)
    return replace(whole, fragments={**whole.fragments, process: fragment})


def blamed(snapshot: Snapshot, of: View | None = None) -> set[tuple[str, str]]:
    return {(finding.check, finding.subject) for finding in verify(snapshot, of).findings}
