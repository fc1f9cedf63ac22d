"""The proof of a snapshot (P1): hashes and frames."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from blake3 import blake3
from hypothesis import given
from tests.causality.proof_samples import (
    S1,
    assemble,
    blamed,
    replace,
    sample,
    snapshots,
    with_fragment,
)
from tests.protocol.playbook import body, examples

from strobe.causality.proof import Finding, require, verify
from strobe.protocol import FIFO, UNORDERED, ChannelSpec, Frame, Frontier, InFlight, Snapshot, View
from strobe.protocol.process.channels import Outgoing
from strobe.protocol.values.frames import BLAKE3


def with_in_flight(snapshot: Snapshot, change: Callable[[list[InFlight]], Any]) -> Snapshot:
    """Return the snapshot with the frames on pq changed."""
    items = list(snapshot.fragments["q"].in_flight["pq"])
    change(items)
    return with_fragment(snapshot, "q", in_flight={**snapshot.fragments["q"].in_flight, "pq": tuple(items)})


def with_frame(snapshot: Snapshot, place: int, **changes: Any) -> Snapshot:
    def change(items: list[InFlight]) -> None:
        items[place] = replace(items[place], frame=replace(items[place].frame, **changes))

    return with_in_flight(snapshot, change)


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
def test_the_undamaged_samples_hold(kind: str, consumed: int) -> None:
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
def test_a_hash_that_a_channel_cannot_have_is_the_only_finding(kind: str, hashed_by: str, problem: str) -> None:
    good = sample()
    channels = (replace(good.view.channels[0], kind=kind, hash=hashed_by), *good.view.channels[1:])
    snapshot = replace(good, view=replace(good.view, channels=channels))
    assert verify(snapshot).findings == (Finding("hash", "pq", problem),)


def test_a_hash_of_another_length_is_named() -> None:
    """If a message contains bytes that look like a frame, a liar could pass them off as the frame in flight."""
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
def test_a_duplicate_frame_is_caught(kind: str, place: int) -> None:
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
    assert "message 4 is in flight, but 2 was expected" in str(verify(damaged))


@pytest.mark.parametrize("kind", [FIFO, UNORDERED])
def test_messages_swapped_between_frames_are_caught(kind: str) -> None:
    items = sample(kind).fragments["q"].in_flight["pq"]
    damaged = with_frame(sample(kind), 0, body=items[2].frame.body)
    assert blamed(with_frame(damaged, 2, body=items[0].frame.body)) == {("hash", "pq")}


def test_swapped_ordinals_of_frames_of_the_same_size_are_caught() -> None:
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
def test_an_impossible_ordinal_on_an_unordered_channel_is_a_finding(ordinal: int) -> None:
    assert {subject for _, subject in blamed(with_frame(sample(UNORDERED), 0, first_ordinal=ordinal))} == {"pq"}


def test_frames_moved_to_another_channel_are_caught_on_both() -> None:
    good = sample()
    moved = with_in_flight(good, lambda items: items.clear())
    into = {**moved.fragments["p"].in_flight, "idle": good.fragments["q"].in_flight["pq"]}
    assert {subject for _, subject in blamed(with_fragment(moved, "p", in_flight=into))} == {"pq", "idle"}


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


@pytest.mark.parametrize("kind", [FIFO, UNORDERED])
@pytest.mark.parametrize(("process", "field"), [("p", "sent"), ("q", "received")])
def test_a_frontier_with_a_wrong_hash_is_caught(kind: str, process: str, field: str) -> None:
    damaged = sample(kind)
    ends = getattr(damaged.fragments[process], field)
    right = ends["pq"].hash
    wrong = replace(ends["pq"], hash=bytes([right[0] ^ 1]) + right[1:])
    assert blamed(with_fragment(damaged, process, **{field: {**ends, "pq": wrong}})) == {("hash", "pq")}
