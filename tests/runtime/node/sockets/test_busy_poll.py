"""A loop that looks on for a moment after something has come, and how that stays cheap."""

import asyncio
from collections.abc import Callable

import pytest
from tests.runtime.link_ends import run

from strobe.runtime.node.busy_poll import LEFT_OUT_MAX, BusyPoller

SPIN_S = 0.5


class Clock:
    """Stands still until it is told otherwise."""

    now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


def on_loop(scenario: Callable[[BusyPoller, Clock], object], spin_s: float = SPIN_S) -> None:
    async def main() -> None:
        clock = Clock()
        waiting = scenario(BusyPoller(spin_s, clock), clock)
        assert asyncio.iscoroutine(waiting)
        await waiting

    run(main())


async def turns(count: int = 5) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


async def in_vain(busy_poller: BusyPoller, clock: Clock) -> None:
    """Let a look end without anything having come."""
    assert busy_poller.looking
    clock.now_s += 2 * SPIN_S
    await turns()
    assert not busy_poller.looking


def test_it_looks_on_from_what_came_last_and_then_lets_the_loop_sleep() -> None:
    async def scenario(busy_poller: BusyPoller, clock: Clock) -> None:
        assert not busy_poller.looking
        busy_poller.poll_soon()
        await turns()
        assert busy_poller.looking
        clock.now_s = 0.4
        busy_poller.poll_soon()
        clock.now_s = 0.8
        await turns()
        assert busy_poller.looking
        clock.now_s = 0.91
        await turns()
        assert not busy_poller.looking

    on_loop(scenario)


def test_after_looks_in_vain_some_are_left_out_and_none_after_one_that_paid() -> None:
    async def scenario(busy_poller: BusyPoller, clock: Clock) -> None:
        for left_out in (0, 1, 3, 7, 15, LEFT_OUT_MAX):
            for _ in range(left_out):
                busy_poller.poll_soon()
                assert not busy_poller.looking
            busy_poller.poll_soon()
            await in_vain(busy_poller, clock)
        for _ in range(LEFT_OUT_MAX + 1):
            busy_poller.poll_soon()
        busy_poller.poll_soon()  # while it looks
        await in_vain(busy_poller, clock)
        busy_poller.poll_soon()
        busy_poller.poll_soon()
        assert busy_poller.looking

    on_loop(scenario)


@pytest.mark.parametrize("closed", [False, True])
def test_it_never_looks_where_that_is_off_and_no_longer_than_its_timeline(closed: bool) -> None:
    async def scenario(busy_poller: BusyPoller, clock: Clock) -> None:
        busy_poller.poll_soon()
        assert busy_poller.looking == closed
        busy_poller.close()
        await turns()
        assert not busy_poller.looking

    on_loop(scenario, SPIN_S if closed else 0.0)
