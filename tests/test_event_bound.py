"""The limit on the bytes that one event may add in memory: it counts each event separately, and is kept closely."""

from strobe.errors import UsageError
from strobe.event_bound import EventBound


class Events:
    """An application whose number of events is set by the test."""

    number = 1

    def __call__(self) -> int:
        return self.number


def bound_of(bytes_max: int) -> tuple[EventBound, Events]:
    events = Events()
    return EventBound("a", bytes_max, events), events


def spend_until_refused(bound: EventBound, size: int = 10) -> int:
    for spent in range(0, 1_000_000, size):
        try:
            bound.spend(size)
        except UsageError:
            return spent
    raise AssertionError("it is never refused")


def test_one_event_is_stopped_soon_after_the_bound() -> None:
    bound, _ = bound_of(10_000)
    assert 10_000 < spend_until_refused(bound) < 17_600


def test_an_event_that_was_stopped_stays_stopped_and_the_next_one_is_not() -> None:
    bound, events = bound_of(1000)
    spend_until_refused(bound)
    assert spend_until_refused(bound) == 0
    events.number += 1
    bound.spend(10)
    bound.check()


def test_events_are_not_charged_for_each_other() -> None:
    bound, events = bound_of(1000)
    for events.number in range(1000):
        for _ in range(9):
            bound.spend(100)
    assert not bound.exceeded
