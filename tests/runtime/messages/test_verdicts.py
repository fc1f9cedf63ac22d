"""Collected verdicts: the counts, the log lines, and when `strobe up` fails (E12)."""

from io import StringIO

import pytest

from strobe.runtime.event_log import EventLog
from strobe.runtime.messages import verdicts
from strobe.runtime.messages.verdicts import ConditionStatus, ConditionVerdict, Verdicts, merged

HOLDS = ConditionVerdict("holds", "8", "8")
VIOLATED = ConditionVerdict("violated", "8", "7")
WORSE = ConditionVerdict("violated", "8", "6")
ERROR = ConditionVerdict("error", problem="KeyError: 'z' (bank.py:3, in total())")
UNDECIDED = ConditionVerdict("undecided", problem="it was removed")


def verdicts_on(*given: ConditionVerdict) -> tuple[Verdicts, StringIO]:
    stream = StringIO()
    noted = Verdicts(["conserved"], EventLog(stream))
    for number, verdict in enumerate(given, 1):
        noted.note(f"s{number}", {"conserved": verdict})
    return noted, stream


def test_every_snapshot_counts_once() -> None:
    noted, _ = verdicts_on(HOLDS, VIOLATED, ERROR, UNDECIDED, WORSE)
    noted.skipped()
    (status,) = noted.status(pending=True)
    assert (status.holds, status.violated, status.error, status.undecided, status.skipped) == (1, 2, 1, 1, 1)
    assert (status.judged, status.committed, status.pending) == (3, 6, True)
    assert (status.snapshot, status.latest) == ("s5", WORSE)
    assert (status.violation_snapshot, status.violation) == ("s2", VIOLATED)


def logged(*given: ConditionVerdict) -> list[str]:
    _, stream = verdicts_on(*given)
    return [line.partition(" ")[2] for line in stream.getvalue().splitlines()]


def test_a_violation_is_logged_when_it_begins_and_when_it_is_over() -> None:
    assert logged(HOLDS, HOLDS, VIOLATED, WORSE, ERROR, ERROR, UNDECIDED, VIOLATED, HOLDS, HOLDS, WORSE) == [
        "holds condition=conserved snapshot=s1 found=8",
        "warning: violated condition=conserved snapshot=s3 found=7 expected=8",
        "warning: not judged condition=conserved snapshot=s5 reason=\"KeyError: 'z' (bank.py:3, in total())\"",
        'warning: not judged condition=conserved snapshot=s7 reason="it was removed"',
        "holds again condition=conserved snapshot=s9 found=8 expected=8 violated_since=s3",
        "warning: violated condition=conserved snapshot=s11 found=6 expected=8",
    ]


def test_a_fact_is_logged_when_it_changes() -> None:
    not_yet, holds = ConditionVerdict("not_yet", found="active: a"), ConditionVerdict("holds", found="terminated")
    assert logged(not_yet, not_yet, holds, holds, not_yet) == [
        'does not hold yet condition=conserved snapshot=s1 found="active: a"',
        "holds condition=conserved snapshot=s3 found=terminated",
        'does not hold yet condition=conserved snapshot=s5 found="active: a"',
    ]
    (status,) = verdicts_on(not_yet, holds)[0].status(pending=False)
    assert (status.judged, status.failed, status.not_yet) == (2, False, 1)


def test_a_condition_that_only_a_snapshot_declares_is_counted_from_then_on() -> None:
    noted, _ = verdicts_on(HOLDS)
    noted.note("s2", {"deadlock": ConditionVerdict("violated", found="a→b→a")})
    assert [(one.name, one.failed) for one in noted.status(pending=False)] == [("conserved", False), ("deadlock", True)]


@pytest.mark.parametrize(
    ("given", "failed"),
    [
        ([], False),
        ([HOLDS], False),
        ([HOLDS, VIOLATED, HOLDS], True),
        ([ERROR, ERROR], True),
        ([HOLDS, ERROR], False),
        ([UNDECIDED], False),
    ],
)
def test_a_violation_or_a_function_that_always_fails_is_a_failure(given: list[ConditionVerdict], failed: bool) -> None:
    (status,) = verdicts_on(*given)[0].status(pending=False)
    assert status.failed is failed


def test_a_violation_is_kept_after_a_coordinator_restart() -> None:
    first, second = (verdicts_on(*given)[0].status(pending=False) for given in ([HOLDS, VIOLATED], [HOLDS, HOLDS]))
    (whole,) = merged([first, second])
    assert (whole.holds, whole.violated, whole.failed) == (3, 1, True)
    assert (whole.violation_snapshot, whole.violation, whole.latest) == ("s2", VIOLATED, HOLDS)
    (unjudged,) = merged([first, [ConditionStatus("conserved", pending=True)]])
    assert (unjudged.latest, unjudged.pending) == (VIOLATED, True)


def test_only_verdicts_of_the_newest_snapshots_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verdicts, "KEPT_MAX", 2)
    noted, _ = verdicts_on(HOLDS, VIOLATED, HOLDS)
    assert [noted.of(name) for name in ("s1", "s2", "s3")] == [{}, {"conserved": VIOLATED}, {"conserved": HOLDS}]
