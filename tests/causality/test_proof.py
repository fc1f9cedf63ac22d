"""The proof of a snapshot (P1): damage of every kind is caught, and named where it is."""

from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
import xxhash
from blake3 import blake3
from hypothesis import assume, given
from hypothesis import strategies as st
from tests.protocol.playbook import body, examples, snapshot_id, view

from strobe.causality.proof import Finding, require, verify
from strobe.errors import SnapshotInconsistent
from strobe.protocol import FIFO, UNORDERED, ChannelSpec, Fragment, Frame, Frontier, InFlight, Snapshot, View
from strobe.protocol.process.channels import Incoming, Outgoing
from strobe.protocol.values import frames as frames_module
from strobe.protocol.values.frames import BLAKE3, XXH3

S1 = snapshot_id(1)
replace = msgspec.structs.replace


class Ends:
    """Both ends of one channel, and what is between them at the cut."""

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
    """Valid snapshots of any topology, with frames received, in flight and cut inside."""
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
    """p has sent q six messages in four frames, of which q has received the first; two channels go back, one unused."""
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


def with_in_flight(snapshot: Snapshot, change: Callable[[list[InFlight]], Any]) -> Snapshot:
    """The snapshot with the frames on pq changed."""
    items = list(snapshot.fragments["q"].in_flight["pq"])
    change(items)
    return with_fragment(snapshot, "q", in_flight={**snapshot.fragments["q"].in_flight, "pq": tuple(items)})


def with_frame(snapshot: Snapshot, place: int, **changes: Any) -> Snapshot:
    def change(items: list[InFlight]) -> None:
        items[place] = replace(items[place], frame=replace(items[place].frame, **changes))

    return with_in_flight(snapshot, change)


def without(mapping: dict[str, Any], key: str) -> dict[str, Any]:
    return {known: value for known, value in mapping.items() if known != key}


def blamed(snapshot: Snapshot, of: View | None = None) -> set[tuple[str, str]]:
    return {(finding.check, finding.subject) for finding in verify(snapshot, of).findings}


# What holds


@examples(0.5)
@given(snapshots())
def test_every_valid_snapshot_holds(snapshot: Snapshot) -> None:
    verdict = verify(snapshot)
    assert verdict.findings == ()
    assert verdict.holds
    assert str(verdict) == f"{S1}: holds (self-consistent, signer unknown)"
    require(snapshot)


@pytest.mark.parametrize("kind", [FIFO, UNORDERED])
@pytest.mark.parametrize("consumed", [0, 1])
def test_the_samples_hold_so_that_each_damage_below_is_the_only_one(kind: str, consumed: int) -> None:
    assert verify(sample(kind, consumed)).holds


@pytest.mark.parametrize("consumed", [0, 1])
def test_a_blake3_chain_holds_and_a_changed_byte_breaks_it(consumed: int) -> None:
    good = sample(FIFO, consumed, BLAKE3)
    assert verify(good).holds
    assert blamed(with_frame(good, -1, body=body("an", "other"))) == {("hash", "pq")}


@pytest.mark.parametrize(
    ("kind", "hashed_by", "problem"),
    [
        (FIFO, "md5", "cannot be checked: no fifo channel has the hash md5"),
        (UNORDERED, BLAKE3, "cannot be checked: no unordered channel has the hash blake3"),
    ],
)
def test_a_hash_that_a_channel_cannot_have_is_named_and_nothing_else(kind: str, hashed_by: str, problem: str) -> None:
    good = sample()
    channels = (replace(good.view.channels[0], kind=kind, hash=hashed_by), *good.view.channels[1:])
    snapshot = replace(good, view=replace(good.view, channels=channels))
    assert verify(snapshot).findings == (Finding("hash", "pq", problem),)


def test_a_hash_of_another_length_is_named_for_a_frame_could_be_hidden_in_it() -> None:
    """A liar who is sent what looks like a frame inside a message could pass it off as the frame in flight."""
    channel = ChannelSpec("pq", "p", "q", hash=BLAKE3)
    honest, hidden = Outgoing(channel), Frame(1, 1, body("forged"))
    header = hidden.first_ordinal.to_bytes(8, "little") + hidden.count.to_bytes(4, "little")
    carrier = honest.seal(1, body(b"looks like " + header + hidden.body), 0, 1)
    before = honest.seed + header + carrier.body[: -len(header + hidden.body)]
    assert honest.hash == blake3(before + header + hidden.body).digest()
    ends = SimpleNamespace(sent=honest.frontier(), received=Frontier(0, before), in_flight=(InFlight(hidden),))
    problem = f"q has a hash of {len(before)} bytes, and blake3 gives 32"
    assert verify(assemble(View(1, ("p", "q"), (channel,)), {"pq": ends})).findings == (Finding("hash", "pq", problem),)


def test_unordered_frames_may_be_kept_in_any_order() -> None:
    assert verify(with_in_flight(sample(UNORDERED), list.reverse)).holds


def test_index_and_view_of_frames_stay_outside_the_proof() -> None:
    assert verify(with_frame(sample(), 0, index=7, view=9)).holds


# Damage to channel data


@pytest.mark.parametrize("kind", [FIFO, UNORDERED])
@pytest.mark.parametrize("place", [0, 1, 2])
def test_a_wrong_byte_is_caught(kind: str, place: int) -> None:
    damaged = sample(kind)
    content = bytearray(damaged.fragments["q"].in_flight["pq"][place].frame.body)
    content[-1] ^= 1
    assert blamed(with_frame(damaged, place, body=bytes(content))) == {("hash", "pq")}


@pytest.mark.parametrize("kind", [FIFO, UNORDERED])
@pytest.mark.parametrize("place", [0, 1, 2])
def test_a_missing_frame_is_caught_and_its_messages_are_counted(kind: str, place: int) -> None:
    damaged = with_in_flight(sample(kind), lambda items: items.pop(place))
    missing = sample(kind).fragments["q"].in_flight["pq"][place].frame.count
    assert ("count", "pq") in blamed(damaged)
    assert f"{missing} missing" in str(verify(damaged))


@pytest.mark.parametrize("kind", [FIFO, UNORDERED])
@pytest.mark.parametrize("place", [0, 1, 2])
def test_a_frame_that_is_there_twice_is_caught(kind: str, place: int) -> None:
    damaged = with_in_flight(sample(kind), lambda items: items.insert(place, items[place]))
    assert {("count", "pq"), ("order", "pq")} == blamed(damaged)
    assert "too many" in str(verify(damaged))


@pytest.mark.parametrize("kind", [FIFO, UNORDERED])
def test_an_invented_message_is_caught(kind: str) -> None:
    invented = InFlight(Frame(7, 1, body("never sent")))
    assert blamed(with_in_flight(sample(kind), lambda items: items.append(invented))) == {("count", "pq")}


@pytest.mark.parametrize("kind", [FIFO, UNORDERED])
def test_a_message_replaced_by_an_invented_one_is_caught(kind: str) -> None:
    assert blamed(with_frame(sample(kind), 1, body=body("forged"))) == {("hash", "pq")}


def test_swapped_frames_are_caught_on_a_fifo_channel() -> None:
    damaged = with_in_flight(sample(), lambda items: items.insert(0, items.pop(1)))
    assert blamed(damaged) == {("order", "pq")}
    assert "message 4 is in flight where 2 is due" in str(verify(damaged))


@pytest.mark.parametrize("kind", [FIFO, UNORDERED])
def test_messages_swapped_between_frames_are_caught(kind: str) -> None:
    items = sample(kind).fragments["q"].in_flight["pq"]
    damaged = with_frame(sample(kind), 0, body=items[2].frame.body)
    assert blamed(with_frame(damaged, 2, body=items[0].frame.body)) == {("hash", "pq")}


def test_ordinals_swapped_between_frames_of_the_same_size_are_caught_by_the_sum() -> None:
    items = sample(UNORDERED).fragments["q"].in_flight["pq"]
    damaged = with_frame(sample(UNORDERED), 0, first_ordinal=items[2].frame.first_ordinal)
    assert blamed(with_frame(damaged, 2, first_ordinal=items[0].frame.first_ordinal)) == {("hash", "pq")}


@pytest.mark.parametrize("kind", [FIFO, UNORDERED])
@pytest.mark.parametrize(
    "wrong", [{"count": 3}, {"count": 0}, {"count": -1}, {"count": 1 << 32}, {"body": b"\xc0"}, {"body": b""}]
)
def test_a_frame_whose_header_and_body_disagree_is_caught(kind: str, wrong: dict[str, Any]) -> None:
    findings = verify(with_frame(sample(kind), 0, **wrong)).findings
    assert Finding("frame", "pq", findings[0].problem) == findings[0]
    assert "in-flight frame 0" in findings[0].problem


@pytest.mark.parametrize("ordinal", [-1, 0, 1 << 64])
def test_an_impossible_ordinal_on_an_unordered_channel_is_a_finding_and_not_a_crash(ordinal: int) -> None:
    assert {subject for _, subject in blamed(with_frame(sample(UNORDERED), 0, first_ordinal=ordinal))} == {"pq"}


def test_frames_moved_to_another_channel_are_caught_on_both() -> None:
    good = sample()
    moved = with_in_flight(good, lambda items: items.clear())
    into = {**moved.fragments["p"].in_flight, "idle": good.fragments["q"].in_flight["pq"]}
    assert {subject for _, subject in blamed(with_fragment(moved, "p", in_flight=into))} == {"pq", "idle"}


# Consumed


@pytest.mark.parametrize("kind", [FIFO, UNORDERED])
@pytest.mark.parametrize("consumed", [0, 2, -1])
def test_a_wrong_number_of_consumed_messages_is_caught(kind: str, consumed: int) -> None:
    def change(items: list[InFlight]) -> None:
        items[0] = replace(items[0], consumed=consumed)

    assert {subject for _, subject in blamed(with_in_flight(sample(kind, consumed=1), change))} == {"pq"}


def test_only_the_first_frame_of_a_fifo_channel_can_be_partly_consumed() -> None:
    def change(items: list[InFlight]) -> None:
        items[2] = replace(items[2], consumed=1)

    assert ("frame", "pq") in blamed(with_in_flight(sample(), change))


# Frontiers and cuts


@pytest.mark.parametrize("kind", [FIFO, UNORDERED])
@pytest.mark.parametrize(("process", "field"), [("p", "sent"), ("q", "received")])
def test_a_frontier_with_a_wrong_hash_is_caught(kind: str, process: str, field: str) -> None:
    damaged = sample(kind)
    ends = getattr(damaged.fragments[process], field)
    right = ends["pq"].hash
    wrong = replace(ends["pq"], hash=bytes([right[0] ^ 1]) + right[1:])
    assert blamed(with_fragment(damaged, process, **{field: {**ends, "pq": wrong}})) == {("hash", "pq")}


def test_an_inconsistent_cut_is_named_with_the_channel_that_shows_it() -> None:
    """q received, before its cut, what p sent after its own."""
    good = sample()
    ends = Ends(good.view.channels[0], [1], 0, [0], 0)
    damaged = with_fragment(good, "q", received={"pq": ends.sent}, in_flight={"pq": ()})
    early = Outgoing(good.view.channels[0]).frontier()
    damaged = with_fragment(damaged, "p", sent={"pq": early})
    assert blamed(damaged) == {("cut", "pq")}
    assert "q had received 1 messages, p had sent 0: the cut is inconsistent" in str(verify(damaged))


def test_fragments_of_different_moments_do_not_make_a_snapshot() -> None:
    """Each is right by itself; between their cuts p sent one message more, which nobody recorded."""
    good = sample()
    later = Outgoing(good.view.channels[0])
    for item in (Frame(1, 1, body("pq.0.0")), *(i.frame for i in good.fragments["q"].in_flight["pq"])):
        later.seal(item.count, item.body, 0, 1)
    assert later.frontier() == good.fragments["p"].sent["pq"]
    later.seal(1, body("more"), 0, 1)
    damaged = with_fragment(good, "p", sent={"pq": later.frontier()})
    assert blamed(damaged) == {("count", "pq")}


def test_a_channel_of_another_incarnation_is_caught() -> None:
    good = sample()
    reborn = replace(good.view.channels[0], incarnation=2)
    ends = Ends(reborn, [1, 2, 1, 2], 1, [0, 1, 2, 3], 0)
    assert blamed(with_fragment(good, "p", sent={"pq": ends.sent})) == {("hash", "pq")}


# Who and what is there


@pytest.mark.parametrize("process", ["p", "q"])
def test_a_forgotten_process_is_named(process: str) -> None:
    damaged = replace(sample(), fragments=without(sample().fragments, process))
    assert blamed(damaged) == {("membership", process)}


def test_a_process_too_many_is_named() -> None:
    extra = Fragment(S1, "x", 1, {}, {}, {})
    assert blamed(replace(sample(), fragments={**sample().fragments, "x": extra})) == {("membership", "x")}


@pytest.mark.parametrize(
    ("process", "field", "channel"),
    [
        ("p", "sent", "pq"),
        ("q", "received", "pq"),
        ("q", "in_flight", "pq"),
        ("q", "sent", "idle"),
        ("p", "in_flight", "idle"),
    ],
)
def test_a_forgotten_channel_is_named_with_who_forgot_it(process: str, field: str, channel: str) -> None:
    kept = without(getattr(sample().fragments[process], field), channel)
    damaged = with_fragment(sample(), process, **{field: kept})
    assert blamed(damaged) == {("forgotten", channel)}
    assert f"not in the fragment of {process}" in str(verify(damaged))


@pytest.mark.parametrize(
    ("field", "value"), [("sent", Frontier(0, b"")), ("received", Frontier(0, b"")), ("in_flight", ())]
)
def test_a_channel_too_many_is_named(field: str, value: Any) -> None:
    more = {**getattr(sample().fragments["p"], field), "xx": value}
    assert blamed(with_fragment(sample(), "p", **{field: more})) == {("membership", "xx")}


def test_a_fragment_in_the_wrong_place_is_named() -> None:
    good = sample()
    swapped = replace(good, fragments={"p": good.fragments["q"], "q": good.fragments["p"]})
    assert {("membership", "p"), ("membership", "q")} <= blamed(swapped)


def test_a_fragment_of_another_snapshot_is_named() -> None:
    assert blamed(with_fragment(sample(), "q", snapshot=snapshot_id(2))) == {("membership", "q")}


def test_a_fragment_of_another_view_is_named() -> None:
    damaged = with_fragment(sample(), "q", view=2)
    assert blamed(damaged) == {("membership", "q")}
    assert "recorded in view 2, the snapshot is of 1" in str(verify(damaged))


def test_a_view_given_from_outside_is_what_counts() -> None:
    good = sample()
    larger = View(1, ("p", "q", "r"), (*good.view.channels, ChannelSpec("pr", "p", "r")))
    assert blamed(good, larger) == {("membership", "r")}
    another = View(1, ("p", "q"), (*good.view.channels, ChannelSpec("second", "p", "q")))
    assert blamed(good, another) == {("forgotten", "second")}
    later = replace(good.view, number=2)
    assert blamed(good, later) == {("membership", "p"), ("membership", "q")}
    smaller = View(1, ("p", "q"), good.view.channels[:2])
    assert blamed(good, smaller) == {("membership", "idle")}


def test_a_snapshot_that_leaves_a_channel_out_of_its_own_view_does_not_pass_with_the_true_one() -> None:
    good = sample()
    liar = replace(good, view=View(1, ("p", "q"), good.view.channels[1:]))
    liar = with_fragment(liar, "p", sent={})
    liar = with_fragment(liar, "q", received={}, in_flight={})
    assert verify(liar).holds
    assert blamed(liar, good.view) == {("forgotten", "pq")}


def test_require_raises_with_every_finding() -> None:
    damaged = replace(sample(), fragments={"p": sample().fragments["p"]})
    with pytest.raises(SnapshotInconsistent, match="q: is in the view but has no fragment") as error:
        require(damaged)
    assert error.value.snapshot_id == str(S1)


def test_a_violated_verdict_lists_each_finding_on_its_own_line() -> None:
    damaged = with_fragment(sample(), "q", view=2, snapshot=snapshot_id(2))
    head, *lines = str(verify(damaged)).splitlines()
    assert head == f"{S1}: violated"
    assert len(lines) == 2
    assert all(line.startswith("  q: ") and line.endswith("[membership]") for line in lines)


# Any single mutation


def _mutations(item: InFlight) -> st.SearchStrategy[InFlight]:
    frame = item.frame
    bodies = st.binary(min_size=0, max_size=len(frame.body) + 2)
    return st.one_of(
        st.integers(0, 8).map(lambda ordinal: replace(item, frame=replace(frame, first_ordinal=ordinal))),
        st.integers(-1, 4).map(lambda count: replace(item, frame=replace(frame, count=count))),
        bodies.map(lambda content: replace(item, frame=replace(frame, body=content))),
        st.integers(-1, 4).map(lambda consumed: replace(item, consumed=consumed)),
    )


def _mutated(data: st.DataObject, snapshot: Snapshot, spec: ChannelSpec) -> Snapshot:
    """The snapshot with any one thing about one channel changed."""
    receiver = snapshot.fragments[spec.target]
    items = list(receiver.in_flight[spec.id])
    what = data.draw(st.sampled_from(["frame", "drop", "repeat", "sent", "received"]))
    if what in ("sent", "received"):
        process = spec.source if what == "sent" else spec.target
        ends = getattr(snapshot.fragments[process], what)
        right = ends[spec.id]
        counts = st.integers(-1, 12).map(lambda count: replace(right, count=count))
        hashes = st.binary(min_size=16, max_size=16).map(lambda digest: replace(right, hash=digest))
        wrong = data.draw(counts | hashes)
        return with_fragment(snapshot, process, **{what: {**ends, spec.id: wrong}})
    assume(items)
    place = data.draw(st.integers(0, len(items) - 1))
    if what == "drop":
        del items[place]
    elif what == "repeat":
        items.insert(data.draw(st.integers(0, len(items))), items[place])
    else:
        items[place] = data.draw(_mutations(items[place]))
    return with_fragment(snapshot, spec.target, in_flight={**receiver.in_flight, spec.id: tuple(items)})


@examples(0.8)
@given(snapshots(), st.data())
def test_any_single_mutation_of_channel_data_is_caught_and_blamed_on_its_channel(
    snapshot: Snapshot, data: st.DataObject
) -> None:
    spec = data.draw(st.sampled_from(snapshot.view.channels))
    damaged = _mutated(data, snapshot, spec)
    assume(damaged != snapshot)
    assert {subject for _, subject in blamed(damaged)} == {spec.id}


# Cost


class Counting(tuple[Any, ...]):
    """A tuple that counts how many of its items were looked at."""

    looks = 0

    def __iter__(self) -> Iterator[Any]:
        for item in super().__iter__():
            Counting.looks += 1
            yield item

    def __contains__(self, wanted: object) -> bool:
        return any(item == wanted for item in self)


def ring(size: int, frames: int, kind: str = FIFO) -> Snapshot:
    """A ring of processes with some frames in flight on each channel."""
    names = [f"{place:03d}" for place in range(size)]
    of = view(*(f"{one}>{other}:{one}" for one, other in zip(names, names[1:] + names[:1], strict=True)), kind=kind)
    sizes = [1] * (frames + 1)
    return assemble(of, {spec.id: Ends(spec, sizes, 1, list(range(frames + 1)), 0) for spec in of.channels})


@pytest.mark.parametrize("kind", [FIFO, UNORDERED])
@pytest.mark.parametrize(("size", "frames"), [(3, 0), (3, 50), (40, 2)])
def test_each_frame_in_flight_is_hashed_once_and_received_ones_never(
    monkeypatch: pytest.MonkeyPatch, size: int, frames: int, kind: str
) -> None:
    snapshot = ring(size, frames, kind)
    hashed: list[bytes] = []

    def counting(content: bytes) -> bytes:
        hashed.append(content)
        return xxhash.xxh3_128_digest(content)

    monkeypatch.setattr(frames_module, "xxhash", SimpleNamespace(xxh3_128_digest=counting))
    verdict = verify(snapshot)
    assert verdict.holds
    # At most one more for each channel: the hash of its name, with which its sum begins.
    assert size * frames <= len(hashed) <= size * frames + size
    assert (verdict.channels, verdict.in_flight_frames) == (size, size * frames)


def test_channels_and_processes_are_looked_at_a_fixed_number_of_times_however_many_there_are() -> None:
    """P1: checked in time proportional to channels plus in-flight messages, not processes times channels."""

    def looks(size: int) -> float:
        snapshot = ring(size, 0)
        view = replace(
            snapshot.view, channels=Counting(snapshot.view.channels), processes=Counting(snapshot.view.processes)
        )
        Counting.looks = 0
        assert verify(replace(snapshot, view=view)).holds
        return Counting.looks / size

    assert looks(100) == looks(10)
