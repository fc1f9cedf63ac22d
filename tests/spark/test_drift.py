"""Drift between snapshots (G1): only what goes on through all of a window is drift, and a rollback begins it anew."""

import pytest

from strobe.spark.drift import Observed, growing_channels, standing_processes


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


def test_a_channel_that_was_set_up_anew_is_another() -> None:
    window = [observed(1, 1), observed(2, 1), observed(1, 1, incarnation=2), observed(2, 1, incarnation=2)]
    # Before its incarnation it had nothing in flight, and nothing is not less than nothing.
    assert list(growing_channels(window)) == []


def test_a_process_stands_still_if_it_runs_no_event_while_messages_wait_for_it() -> None:
    still = [observed(3, position=7, waiting=3) for _ in range(3)]
    assert [finding.subject for finding in standing_processes(still)] == ["b"]
    assert "position 7 over 3 snapshots, with 3 messages" in next(standing_processes(still)).problem


def test_a_process_that_has_nothing_to_receive_is_idle_and_not_stuck() -> None:
    assert list(standing_processes([observed(0, position=7, waiting=waiting) for waiting in (2, 0, 2)])) == []


def test_a_process_that_moves_or_has_just_joined_does_not_stand_still() -> None:
    assert list(standing_processes([observed(1, position, waiting=1) for position in (7, 8, 8)])) == []
    joined = Observed(1, {"a": 1}, {"a": 0}, {})
    assert list(standing_processes([joined, observed(1, 7, waiting=1), observed(1, 7, waiting=1)])) == []
