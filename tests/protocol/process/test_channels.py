"""The two ends of a channel: ordinals, running hashes, and violations that change nothing (M2)."""

from typing import Any

import pytest
import xxhash
from blake3 import blake3
from hypothesis import given
from hypothesis import strategies as st
from tests.protocol.playbook import Playbook, body, frame, received, request, snapshot_id, view

from strobe.errors import ProtocolViolation
from strobe.protocol import FIFO, UNORDERED, ChandyLamport, Frame, Frontier, LaiYang
from strobe.protocol.process.channels import Incoming, Outgoing
from strobe.protocol.values.frames import BLAKE3, body_count, extend_all, extend_blake3, extend_fifo, seed_hash
from strobe.protocol.values.view import ChannelSpec

FIFO_SPEC = ChannelSpec("qp", "q", "p")
BLAKE3_SPEC = ChannelSpec("qp", "q", "p", hash=BLAKE3)
UNORDERED_SPEC = ChannelSpec("qp", "q", "p", UNORDERED)
ABC = [frame(1, "a"), frame(2, "b", "c"), frame(4, "d")]


def facts(end: Incoming) -> dict[str, Any]:
    """Return everything that an incoming end stores."""
    values = {name: getattr(end, name) for name in Incoming.__slots__}
    return {**values, "ahead": set(end.ahead)}


def taken(spec: ChannelSpec, *frames: Frame) -> Incoming:
    incoming = Incoming(spec)
    for item in frames:
        incoming.accept(item, "p")
    return incoming


# Frames that a FIFO channel refuses


@pytest.mark.parametrize(
    ("before", "wrong", "problem"),
    [
        ([], frame(2, "b"), "message 2 arrived, but 1 was expected (1 missing: a gap or a reordering)"),
        ([frame(1, "a")], frame(4, "d"), "message 4 arrived, but 2 was expected (2 missing: a gap or a reordering)"),
        ([frame(1, "a")], frame(1, "a"), "message 1 arrived again or out of order: 2 was expected (duplicate)"),
        (
            [frame(1, "a", "b")],
            frame(2, "b", ""),
            "message 2 arrived again or out of order: 3 was expected (duplicate)",
        ),
        ([], frame(0, "?"), "message 0 arrived again or out of order: 1 was expected (duplicate)"),
    ],
    ids=["gap at the start", "gap", "duplicate", "overlap", "ordinals start at one"],
)
def test_a_fifo_channel_names_what_is_wrong_and_changes_nothing(
    before: list[Frame], wrong: Frame, problem: str
) -> None:
    incoming = taken(FIFO_SPEC, *before)
    known = facts(incoming)
    with pytest.raises(ProtocolViolation) as violation:
        incoming.accept(wrong, "p")
    assert (violation.value.process, violation.value.channel, violation.value.problem) == ("p", "qp", problem)
    assert str(violation.value) == f"channel qp, at p: {problem}"
    assert facts(incoming) == known


def test_a_reordering_on_a_fifo_channel_is_found_at_its_first_frame() -> None:
    incoming = taken(FIFO_SPEC, ABC[0])
    with pytest.raises(ProtocolViolation, match="message 4 arrived, but 2 was expected"):
        incoming.accept(ABC[2], "p")
    incoming.accept(ABC[1], "p")
    incoming.accept(ABC[2], "p")
    assert incoming.count == 4


@given(st.permutations(ABC), st.integers(0, 3))
def test_a_fifo_channel_takes_exactly_the_prefixes_in_order(order: list[Frame], count: int) -> None:
    try:
        taken(FIFO_SPEC, *order[:count])
        accepted = True
    except ProtocolViolation:
        accepted = False
    assert accepted == (order[:count] == ABC[:count])


# Unordered channels


@given(st.permutations(ABC))
def test_every_order_on_an_unordered_channel_ends_at_one_frontier(order: list[Frame]) -> None:
    incoming = taken(UNORDERED_SPEC, *order)
    assert incoming.frontier() == taken(UNORDERED_SPEC, *ABC).frontier()
    assert (incoming.next_ordinal, incoming.ahead) == (5, set())


@pytest.mark.parametrize(
    ("before", "wrong"),
    [
        ([ABC[0]], ABC[0]),
        (ABC, ABC[1]),
        ([ABC[1]], ABC[1]),
        ([ABC[2]], frame(3, "c", "d")),
        ([ABC[1]], frame(1, "a", "b")),
    ],
    ids=["the last", "an old one", "one ahead", "tail overlaps", "head overlaps"],
)
def test_an_unordered_channel_names_duplicates_and_changes_nothing(before: list[Frame], wrong: Frame) -> None:
    incoming = taken(UNORDERED_SPEC, *before)
    known = facts(incoming)
    with pytest.raises(ProtocolViolation, match=rf"message {wrong.first_ordinal} arrived again \(duplicate\)"):
        incoming.accept(wrong, "p")
    assert facts(incoming) == known


def test_an_unordered_channel_remembers_only_what_is_ahead_of_a_gap() -> None:
    incoming = taken(UNORDERED_SPEC, *(frame(ordinal, "x") for ordinal in range(2, 50)))
    assert len(incoming.ahead) == 48
    incoming.accept(frame(1, "x"), "p")
    assert not incoming.ahead
    assert incoming.next_ordinal == 50


# A violation reaches the host and leaves the machine unchanged


@pytest.mark.parametrize("protocol", [ChandyLamport, LaiYang])
@pytest.mark.parametrize("ordinal", [2, 4], ids=["duplicate", "gap"])
def test_a_violation_changes_no_frontier_and_no_open_recording(protocol, ordinal: int) -> None:
    play = Playbook(protocol("p", view("q>p", "r>p")))
    play.handle(received("qp", frame(1, "a")))
    play.handle(request(snapshot_id(1)))
    play.handle(received("qp", frame(2, "b")))
    recording = play.machine.open[snapshot_id(1)]
    before = (facts(play.machine.incoming["qp"]), {channel: list(items) for channel, items in recording.frames.items()})
    with pytest.raises(ProtocolViolation):
        play.handle(received("qp", frame(ordinal, "wrong")))
    assert (facts(play.machine.incoming["qp"]), recording.frames) == before


@pytest.mark.parametrize(
    ("kind", "ordinal"),
    [(FIFO, 3), (FIFO, 1), (UNORDERED, 1)],
    ids=["fifo gap", "fifo duplicate", "unordered duplicate"],
)
def test_a_lai_yang_process_records_nothing_for_a_refused_frame(kind: str, ordinal: int) -> None:
    """The host never sees the effects of a step that raises, so such a step must record nothing."""
    play = Playbook(LaiYang("p", view("q>p", kind=kind)))
    play.handle(received("qp", frame(1, "a")))
    with pytest.raises(ProtocolViolation):
        play.handle(received("qp", frame(ordinal, "wrong", index=1)))
    assert not play.machine.open
    assert play.machine.index == 0


@pytest.mark.parametrize("protocol", [ChandyLamport, LaiYang])
def test_a_frame_on_a_channel_that_is_not_in_the_view_is_named(protocol) -> None:
    with pytest.raises(ProtocolViolation, match="not in the view") as violation:
        Playbook(protocol("p", view("q>p"))).handle(received("xp", frame(1, "a")))
    assert violation.value.channel == "xp"


# Ends and hashes


@pytest.mark.parametrize("spec", [FIFO_SPEC, BLAKE3_SPEC, UNORDERED_SPEC], ids=[FIFO, BLAKE3, UNORDERED])
@given(sizes=st.lists(st.integers(1, 4), max_size=6))
def test_both_ends_have_the_same_frontier_after_all_frames_arrived(spec: ChannelSpec, sizes: list[int]) -> None:
    outgoing, incoming = Outgoing(spec), Incoming(spec)
    for place, size in enumerate(sizes):
        sealed = outgoing.seal(size, body(*(f"{place}.{part}" for part in range(size))), index=2, view=3)
        assert (sealed.index, sealed.view, sealed.first_ordinal) == (2, 3, 1 + sum(sizes[:place]))
        assert sealed.last_ordinal == sum(sizes[: place + 1]) == outgoing.count
        incoming.accept(sealed, "p")
    assert incoming.frontier() == outgoing.frontier()
    assert incoming.count == sum(sizes)


def test_an_unused_channel_has_the_hash_of_its_name_and_incarnation() -> None:
    seeds = {
        Outgoing(ChannelSpec(name, "q", "p", FIFO, incarnation)).frontier()
        for name in ("a", "b")
        for incarnation in (1, 2)
    }
    assert len(seeds) == 4
    assert Frontier(0, seed_hash("a", 2)) in seeds


@pytest.mark.parametrize("size", [0, 4095, 4096, 4097, 10_000])
def test_long_bodies_hash_as_short_ones_do(size: int) -> None:
    previous, content = seed_hash("a", 1), bytes(size)
    header = (7).to_bytes(8, "little") + (3).to_bytes(4, "little")
    assert extend_fifo(previous, 7, 3, content) == xxhash.xxh3_128_digest(previous + header + content)
    assert extend_fifo(previous, 7, 3, memoryview(content)) == extend_fifo(previous, 7, 3, content)


@pytest.mark.parametrize("size", [0, 4095, 4096, 4097, 10_000])
def test_a_blake3_chain_hashes_the_whole_digest_before_and_the_frame(size: int) -> None:
    previous, content = blake3(b"a\0" + (1).to_bytes(8, "little")).digest(), bytes(size)
    header = (7).to_bytes(8, "little") + (3).to_bytes(4, "little")
    assert seed_hash("a", 1, BLAKE3) == previous
    assert extend_blake3(previous, 7, 3, content) == blake3(previous + header + content).digest()
    assert extend_blake3(previous, 7, 3, memoryview(content)) == extend_blake3(previous, 7, 3, content)


@given(st.permutations(ABC), st.sampled_from([FIFO, UNORDERED]))
def test_the_chain_depends_on_the_order_and_the_sum_does_not(order: list[Frame], kind: str) -> None:
    seed = seed_hash("qp", 1)
    hashed = [extend_all(kind, seed, seed, [(f.first_ordinal, f.count, f.body) for f in way]) for way in (ABC, order)]
    assert (hashed[0] == hashed[1]) == (kind == UNORDERED or order == ABC)


def test_index_and_view_of_a_frame_stay_outside_the_hash() -> None:
    one, other = taken(FIFO_SPEC, frame(1, "a", index=1, view=2)), taken(FIFO_SPEC, frame(1, "a", index=5, view=6))
    assert one.frontier() == other.frontier()


@given(st.lists(st.none() | st.integers(-9, 9) | st.text(), max_size=20))
def test_the_header_of_a_body_has_its_number_of_messages(messages: list[Any]) -> None:
    assert body_count(body(*messages)) == len(messages)


@pytest.mark.parametrize("count", [15, 16, 65_535, 65_536])
def test_the_header_of_a_long_body_is_read_too(count: int) -> None:
    assert body_count(body(*(0 for _ in range(count)))) == count
    assert body_count(memoryview(body(*(0 for _ in range(count))))) == count


@pytest.mark.parametrize("wrong", [b"", b"\xc0", b"\x81\x01\x02", b"\xdc\x00", b"\xdd\x00\x00\x00", b"\xa1x"])
def test_a_body_that_is_no_array_has_no_count(wrong: bytes) -> None:
    assert body_count(wrong) is None
