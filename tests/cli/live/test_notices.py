"""The lines beneath the table of `strobe up`: each has a time, and a notice goes when its matter is over (E12)."""

from tests.cli.live.processes.started_up import status_of
from tests.cli.live.processes.test_supervisor import condition

from strobe.cli.live.notices import EVENTS_SHOWN, Notices, timed
from strobe.cli.live.up_display import UpDisplay
from strobe.runtime.coordinator.health_monitor import TroubleTimes
from strobe.runtime.messages.api_documents import Trouble
from strobe.runtime.messages.verdicts import ConditionVerdict


class Clock:
    def __init__(self):
        self.now_s = 1_000_000.0

    def __call__(self):
        return self.now_s


def test_an_event_has_its_time_and_only_the_newest_are_kept():
    clock = Clock()
    notices = Notices(clock)
    assert notices.happened("it begins") == timed(clock.now_s, "it begins")
    assert notices.happened("it begins") is None
    for number in range(EVENTS_SHOWN):
        clock.now_s += 1
        notices.happened(f"event {number}")
    assert notices.lines[0] == timed(clock.now_s - EVENTS_SHOWN + 1, "event 0")
    assert len(notices.lines) == EVENTS_SHOWN


def test_a_notice_keeps_its_time_while_it_lasts_and_goes_when_it_is_over():
    clock = Clock()
    notices, since_s = Notices(clock), clock.now_s
    assert notices.begin("slow a", "a has waited 3.0 s") == timed(since_s, "a has waited 3.0 s")
    clock.now_s += 4
    assert notices.begin("slow a", "a has waited 7.0 s") is None
    assert notices.lines == [timed(since_s, "a has waited 7.0 s")]
    assert notices.end("slow a") == timed(clock.now_s, "over after 4 s: a has waited 7.0 s")
    assert notices.lines == []
    assert notices.end("slow a") is None


def test_events_do_not_push_out_a_notice_that_lasts():
    notices = Notices(Clock())
    notices.begin("missing b", "b is not running")
    for number in range(EVENTS_SHOWN + 1):
        notices.happened(f"event {number}")
    assert notices.lines[0].endswith("b is not running")


def test_a_trouble_keeps_its_beginning_while_it_lasts():
    times = TroubleTimes()
    first, again = (Trouble("slow", f"channel a->b has waited {waited} s") for waited in ("3.1", "4.1"))
    other = Trouble("missing", "process b is not running")
    assert [one.since_us for one in times.dated([first], 10)] == [10]
    assert [one.since_us for one in times.dated([again, other], 20)] == [10, 20]
    assert [one.since_us for one in times.dated([other], 30)] == [20]
    assert [one.since_us for one in times.dated([again, other], 40)] == [40, 20]


def test_troubles_are_shown_since_the_coordinator_knows_them_and_until_they_are_over(capsys):
    display = UpDisplay(clock_s=Clock())
    missing = Trouble("missing", "process b is not running", since_us=999_990_000_000)
    for troubles in ([missing], [missing], []):
        display.show(status_of(now_us=10_000_000, troubles=troubles))
    assert capsys.readouterr().err.splitlines() == [
        timed(999_990.0, "missing: process b is not running"),
        timed(1_000_000.0, "over after 10 s: missing: process b is not running"),
    ]
    assert display._notices.lines == []


def test_the_notice_of_a_violation_goes_when_the_condition_holds_again():
    display = UpDisplay(quiet=True, clock_s=Clock())
    held = ConditionVerdict("holds", "800", "800")
    shown = []
    for verdict in (held, ConditionVerdict("violated", "800", "790"), ConditionVerdict("error", problem="no"), held):
        display.show(status_of(conditions=[condition(verdict)]))
        shown.append(sorted(display._notices.matters))
    assert shown == [[], ["condition conserved"], ["condition conserved"], []]
