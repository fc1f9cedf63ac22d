"""Limits on snapshots, and advice on the interval (E10)."""

import math

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from strobe.errors import UsageError
from strobe.protocol import Lifecycle, Policy, View, advise_interval_s

SECONDS = st.floats(1e-3, 1e6)


@pytest.mark.parametrize("limit", ["overlapping_max", "attempts_max", "timeout_us"])
@pytest.mark.parametrize("value", [0, -1])
def test_limits_below_one_are_refused(limit: str, value: int) -> None:
    with pytest.raises(UsageError, match=limit.removesuffix("_us")):
        msgspec.structs.replace(Policy(), **{limit: value}).check()


@pytest.mark.parametrize("time", ["interval_us", "pause_us_min", "backoff_us", "backoff_us_max"])
def test_negative_times_are_refused(time: str) -> None:
    """A negative interval would start a snapshot at every event: a storm."""
    with pytest.raises(UsageError):
        msgspec.structs.replace(Policy(), **{time: -1}).check()


def test_the_coordinator_checks_its_policy() -> None:
    with pytest.raises(UsageError):
        Lifecycle(View(1, ("p",), ()), Policy(attempts_max=0), "chandy-lamport")


def test_the_back_off_doubles_up_to_its_maximum() -> None:
    policy = Policy(backoff_us=100, backoff_us_max=1000)
    assert [policy.backoff_after(attempt) for attempt in range(1, 7)] == [100, 200, 400, 800, 1000, 1000]
    assert policy.backoff_after(1_000_000) == 1000


@given(SECONDS, st.floats(2.01, 1e6))
def test_the_advised_interval_loses_the_least_time(cost_s: float, times_rarer: float) -> None:
    """Overhead of an interval: cost / interval for snapshots, and half an interval of work redone per failure."""
    between_failures_s = cost_s * times_rarer

    def overhead(interval_s: float) -> float:
        return cost_s / interval_s + interval_s / (2 * between_failures_s)

    advised = advise_interval_s(cost_s, between_failures_s)
    assert overhead(advised) <= min(overhead(advised * 0.99), overhead(advised * 1.01))
    assert math.isclose(advised, math.sqrt(2 * cost_s * between_failures_s))


@given(SECONDS, SECONDS)
def test_the_advised_interval_is_never_less_than_the_cost(cost_s: float, between_failures_s: float) -> None:
    assert advise_interval_s(cost_s, between_failures_s) >= cost_s


def test_with_very_frequent_failures_the_interval_is_the_mtbf() -> None:
    assert advise_interval_s(5.0, 10.0) == 10.0
    assert advise_interval_s(9.0, 10.0) == 10.0


@pytest.mark.parametrize(
    ("cost_s", "between_failures_s"), [(0, 1), (1, 0), (-1, 1), (1, -1), (math.nan, 1), (1, math.nan)]
)
def test_advice_needs_a_cost_and_a_failure_rate(cost_s: float, between_failures_s: float) -> None:
    with pytest.raises(UsageError, match="above zero"):
        advise_interval_s(cost_s, between_failures_s)
