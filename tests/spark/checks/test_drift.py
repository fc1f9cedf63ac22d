"""Drift between snapshots (G1): only a trend through a whole window is drift, and a rollback restarts the window."""

from pathlib import Path

import pytest
from tests.spark.examining import DRIFT_WINDOW, examined
from tests.storage.samples import commit, frame, frontier, sample_id, snapshot_of

from strobe.protocol.values.fragment import OPAQUE, LocalState, Snapshot
from strobe.protocol.values.frames import InFlight
from strobe.protocol.values.log_entries import EpochStart
from strobe.protocol.values.view import ChannelSpec, View
from strobe.spark.checks.drift import CHANNEL_GROWTH, STANDSTILL, Observed, growing_channels, stalled_processes
from strobe.spark.checks.snapshot_checker import VERDICT, VIOLATION
from strobe.storage import Store

CHANNEL = ChannelSpec("a->b", "a", "b")


def observed(messages: int, position: int, *, waiting: int = 0, incarnation: int = 1) -> Observed:
    in_flight = {("a->b", incarnation): messages} if messages else {}
    return Observed(1, {"a": 100 + messages, "b": position}, {"a": 0, "b": waiting}, in_flight)


@pytest.mark.parametrize(
    ("counts", "grows"),
    [
        ([1, 2, 3], True),
        ([0, 5, 6], True),
        ([1, 2, 2], False),
        ([3, 2, 4], False),
        ([1, 2, 0], False),
        ([0, 0, 0], False),
    ],
)
def test_a_channel_grows_if_there_is_more_in_flight_in_each_snapshot(counts: list[int], grows: bool) -> None:
    findings = list(growing_channels([observed(count, position=1) for count in counts]))
    assert [finding.subject for finding in findings] == (["a->b"] if grows else [])
    if grows:
        assert f"{counts[0]} to {counts[-1]} messages" in findings[0].problem


def test_a_reopened_channel_is_a_new_channel() -> None:
    window = [observed(1, 1), observed(2, 1), observed(1, 1, incarnation=2), observed(2, 1, incarnation=2)]
    # Before this incarnation, 0 messages were in flight, and 0 is not less than 0.
    assert list(growing_channels(window)) == []


def test_a_process_without_events_while_messages_wait_is_stalled() -> None:
    stalled = [observed(3, position=7, waiting=3) for _ in range(3)]
    assert [finding.subject for finding in stalled_processes(stalled)] == ["b"]
    assert "position 7 over 3 snapshots, with 3 messages" in next(stalled_processes(stalled)).problem


def test_a_process_that_has_nothing_to_receive_is_idle_not_stalled() -> None:
    assert list(stalled_processes([observed(0, position=7, waiting=waiting) for waiting in (2, 0, 2)])) == []


def test_a_process_that_moves_or_has_just_joined_is_not_stalled() -> None:
    assert list(stalled_processes([observed(1, position, waiting=1) for position in (7, 8, 8)])) == []
    joined = Observed(1, {"a": 1}, {"a": 0}, {})
    assert list(stalled_processes([joined, observed(1, 7, waiting=1), observed(1, 7, waiting=1)])) == []


def waiting_on_channel(counter: int, messages: int, *, position: int, epoch: int = 1) -> Snapshot:
    """A snapshot in which `b` is at `position`, with this number of messages in flight to it."""
    frames = [frame(number, "m") for number in range(1, messages + 1)]
    return snapshot_of(
        sample_id(counter, epoch),
        View(1, ("a", "b"), (CHANNEL,)),
        sent={"a": {CHANNEL.id: frontier(CHANNEL, frames)}, "b": {}},
        received={"a": {}, "b": {CHANNEL.id: frontier(CHANNEL, [])}},
        in_flight={"a": {}, "b": {CHANNEL.id: tuple(map(InFlight, frames))}},
        states={"a": LocalState(messages, OPAQUE, b""), "b": LocalState(position, OPAQUE, b"")},
    )


def verdicts_on(check: str, store: Store) -> list[str]:
    found = examined(store)
    assert [row["name"] for row in found if row["row_kind"] == VERDICT and row["check"] == "proof"] == ["holds"] * 5
    return [row["name"] for row in found if row["row_kind"] == VERDICT and row["check"] == check]


def test_G1_a_growing_channel_is_violated_from_the_first_full_window(tmp_path: Path) -> None:
    store = Store.create(tmp_path / "store")
    for counter, messages in enumerate((1, 2, 3, 4, 4), start=1):
        commit(store, waiting_on_channel(counter, messages, position=counter))
    assert DRIFT_WINDOW == 3
    assert verdicts_on(CHANNEL_GROWTH, store) == ["undecided", "undecided", "violated", "violated", "holds"]
    assert verdicts_on(STANDSTILL, store) == ["undecided", "undecided", "holds", "holds", "holds"], "its receiver moves"
    subjects = [(row["check"], row["name"]) for row in examined(store) if row["row_kind"] == VIOLATION]
    assert subjects == [(CHANNEL_GROWTH, "a->b")] * 2


def test_G1_a_process_at_a_standstill_is_violated_not_its_channel(tmp_path: Path) -> None:
    store = Store.create(tmp_path / "store")
    for counter, position in enumerate((7, 7, 7, 7, 8), start=1):
        commit(store, waiting_on_channel(counter, 2, position=position))
    assert verdicts_on(STANDSTILL, store) == ["undecided", "undecided", "violated", "violated", "holds"]
    assert verdicts_on(CHANNEL_GROWTH, store) == ["undecided", "undecided", "holds", "holds", "holds"]


def test_G1_a_rollback_restarts_the_window_of_drift(tmp_path: Path) -> None:
    """A rollback changes what is in flight, so snapshots of two epochs are not compared."""
    store = Store.create(tmp_path / "store")
    for counter, messages in enumerate((1, 2), start=1):
        commit(store, waiting_on_channel(counter, messages, position=7))
    store.append(EpochStart(2, 0), store.state().next_position)
    for counter, messages in enumerate((3, 4, 5), start=1):
        commit(store, waiting_on_channel(counter, messages, position=7, epoch=2))
    for check in (CHANNEL_GROWTH, STANDSTILL):
        assert verdicts_on(check, store) == ["undecided", "undecided", "undecided", "undecided", "violated"]
    reasons = [row["text"] for row in examined(store) if row["row_kind"] == VERDICT and row["check"] == CHANNEL_GROWTH]
    assert reasons[2:4] == [f"{count} of the 3 snapshots that it takes, in epoch 2" for count in (1, 2)]
