"""Exponential back-off."""

from strobe.backoff import Backoff, wait_after


def test_waits_grow_up_to_the_limit_and_start_over_after_a_success() -> None:
    backoff = Backoff(0.5, 3.0)
    assert [backoff.next() for _ in range(5)] == [0.5, 1.0, 2.0, 3.0, 3.0]
    assert backoff.failures == 5
    backoff.reset()
    assert (backoff.failures, backoff.next()) == (0, 0.5)


def test_the_factor_can_be_chosen() -> None:
    backoff = Backoff(1.0, 10.0, factor=4)
    assert [backoff.next() for _ in range(3)] == [1.0, 4.0, 10.0]


def test_after_any_number_of_failures_the_wait_is_the_limit() -> None:
    assert wait_after(1_000_000, 100, 1000) == 1000
    assert wait_after(1_000_000, 0.1, 5.0) == 5.0
