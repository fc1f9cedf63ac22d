"""Busy polling: the event loop polls for a moment after a read, and backs off if that is fruitless."""

import asyncio
from collections.abc import Callable

import pytest
from tests.runtime.link_ends import run

from strobe.runtime.event_loop import FOUND_MAX, SKIPPED_MAX, BusyPoller

SPIN_S = 0.5


class Clock:
    """Stands still until the test sets it."""

    now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


def on_loop(
    scenario: Callable[[BusyPoller, Clock], object],
    spin_s: float = SPIN_S,
    preemptions: Callable[[], int] = lambda: 0,
) -> None:
    async def main() -> None:
        clock = Clock()
        waiting = scenario(BusyPoller(spin_s, clock, preemptions), clock)
        assert asyncio.iscoroutine(waiting)
        await waiting

    run(main())


async def turns(count: int = 5) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


async def poll_fruitlessly(busy_poller: BusyPoller, clock: Clock) -> None:
    """Let a poll end without a read."""
    assert busy_poller.polling
    clock.now_s += 2 * SPIN_S
    await turns()
    assert not busy_poller.polling


def test_it_polls_for_a_while_after_the_last_read() -> None:
    async def scenario(busy_poller: BusyPoller, clock: Clock) -> None:
        assert not busy_poller.polling
        busy_poller.poll_soon()
        await turns()
        assert busy_poller.polling
        clock.now_s = 0.4
        busy_poller.poll_soon()
        clock.now_s = 0.8
        await turns()
        assert busy_poller.polling
        clock.now_s = 0.91
        await turns()
        assert not busy_poller.polling

    on_loop(scenario)


def test_fruitless_polls_are_followed_by_skipped_ones() -> None:
    async def scenario(busy_poller: BusyPoller, clock: Clock) -> None:
        for skipped in (0, 1, 3, 7, 15, 31, 63, 127, 255, SKIPPED_MAX):
            for _ in range(skipped):
                busy_poller.poll_soon()
                assert not busy_poller.polling
            busy_poller.poll_soon()
            await poll_fruitlessly(busy_poller, clock)
        for _ in range(SKIPPED_MAX + 1):
            busy_poller.poll_soon()
        busy_poller.poll_soon()  # while it polls
        await poll_fruitlessly(busy_poller, clock)
        busy_poller.poll_soon()
        busy_poller.poll_soon()
        assert busy_poller.polling

    on_loop(scenario)


@pytest.mark.parametrize(("each", "stops"), [(0, False), (1, True)])
def test_polling_stops_when_a_peer_needs_this_processor(each: int, stops: bool) -> None:
    """A thread that was preempted before most reads has found nothing by polling: the peer ran instead of it."""
    reads = 0

    async def scenario(busy_poller: BusyPoller, clock: Clock) -> None:
        nonlocal reads
        busy_poller.poll_soon()
        for place in range(1, FOUND_MAX + 3):
            await turns(1)
            assert busy_poller.polling == (place <= FOUND_MAX or not stops)
            reads += 1
            busy_poller.poll_soon()

    on_loop(scenario, preemptions=lambda: each * reads)


@pytest.mark.parametrize("closed", [False, True])
def test_polling_stops_when_closed_and_can_be_off(closed: bool) -> None:
    async def scenario(busy_poller: BusyPoller, clock: Clock) -> None:
        busy_poller.poll_soon()
        assert busy_poller.polling == closed
        busy_poller.close()
        await turns()
        assert not busy_poller.polling

    on_loop(scenario, SPIN_S if closed else 0.0)
