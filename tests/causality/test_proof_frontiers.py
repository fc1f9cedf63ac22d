"""The proof of a snapshot (P1): frontiers, views and cost."""

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import xxhash
from hypothesis import assume, given
from hypothesis import strategies as st
from tests.causality.proof_samples import (
    S1,
    Ends,
    assemble,
    blamed,
    replace,
    sample,
    snapshots,
    with_fragment,
)
from tests.protocol.playbook import body, examples, snapshot_id, view

from strobe.causality.proof import require, verify
from strobe.errors import SnapshotInconsistent
from strobe.protocol import FIFO, UNORDERED, ChannelSpec, Fragment, Frame, Frontier, InFlight, Snapshot, View
from strobe.protocol.process.channels import Outgoing
from strobe.protocol.values import frames as frames_module


def without(mapping: dict[str, Any], key: str) -> dict[str, Any]:
    return {known: value for known, value in mapping.items() if known != key}


def test_an_inconsistent_cut_is_named_with_the_channel_that_shows_it() -> None:
    """Before its cut, q received a message that p sent after its own cut."""
    good = sample()
    ends = Ends(good.view.channels[0], [1], 0, [0], 0)
    damaged = with_fragment(good, "q", received={"pq": ends.sent}, in_flight={"pq": ()})
    early = Outgoing(good.view.channels[0]).frontier()
    damaged = with_fragment(damaged, "p", sent={"pq": early})
    assert blamed(damaged) == {("cut", "pq")}
    assert "q had received 1 messages, p had sent 0: the cut is inconsistent" in str(verify(damaged))


def test_fragments_of_different_moments_do_not_make_a_snapshot() -> None:
    """Each fragment is correct by itself, but between the cuts p sent one more message, which nobody recorded."""
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
    renewed = replace(good.view.channels[0], incarnation=2)
    ends = Ends(renewed, [1, 2, 1, 2], 1, [0, 1, 2, 3], 0)
    assert blamed(with_fragment(good, "p", sent={"pq": ends.sent})) == {("hash", "pq")}


@pytest.mark.parametrize("process", ["p", "q"])
def test_a_forgotten_process_is_named(process: str) -> None:
    damaged = replace(sample(), fragments=without(sample().fragments, process))
    assert blamed(damaged) == {("membership", process)}


def test_an_extra_process_is_named() -> None:
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
def test_a_forgotten_channel_is_named_with_its_process(process: str, field: str, channel: str) -> None:
    kept = without(getattr(sample().fragments[process], field), channel)
    damaged = with_fragment(sample(), process, **{field: kept})
    assert blamed(damaged) == {("forgotten", channel)}
    assert f"not in the fragment of {process}" in str(verify(damaged))


@pytest.mark.parametrize(
    ("field", "value"), [("sent", Frontier(0, b"")), ("received", Frontier(0, b"")), ("in_flight", ())]
)
def test_an_extra_channel_is_named(field: str, value: Any) -> None:
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


def test_a_given_view_overrides_the_view_of_the_snapshot() -> None:
    good = sample()
    larger = View(1, ("p", "q", "r"), (*good.view.channels, ChannelSpec("pr", "p", "r")))
    assert blamed(good, larger) == {("membership", "r")}
    another = View(1, ("p", "q"), (*good.view.channels, ChannelSpec("second", "p", "q")))
    assert blamed(good, another) == {("forgotten", "second")}
    later = replace(good.view, number=2)
    assert blamed(good, later) == {("membership", "p"), ("membership", "q")}
    smaller = View(1, ("p", "q"), good.view.channels[:2])
    assert blamed(good, smaller) == {("membership", "idle")}


def test_a_channel_left_out_of_the_view_is_found_with_the_true_view() -> None:
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
    """Return the snapshot with one change to the data of one channel."""
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
def test_any_single_mutation_of_channel_data_is_blamed_on_its_channel(snapshot: Snapshot, data: st.DataObject) -> None:
    spec = data.draw(st.sampled_from(snapshot.view.channels))
    damaged = _mutated(data, snapshot, spec)
    assume(damaged != snapshot)
    assert {subject for _, subject in blamed(damaged)} == {spec.id}


class Counting(tuple[Any, ...]):
    """A tuple that counts how many of its items were read."""

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


def test_channels_and_processes_are_read_a_fixed_number_of_times() -> None:
    """P1: the time is proportional to channels plus in-flight messages, not to processes times channels."""

    def looks(size: int) -> float:
        snapshot = ring(size, 0)
        view = replace(
            snapshot.view, channels=Counting(snapshot.view.channels), processes=Counting(snapshot.view.processes)
        )
        Counting.looks = 0
        assert verify(replace(snapshot, view=view)).holds
        return Counting.looks / size

    assert looks(100) == looks(10)
