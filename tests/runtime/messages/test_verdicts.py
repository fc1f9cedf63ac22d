"""The books of verdicts: counts that add up, what is logged, and what makes `strobe up` fail (E12)."""

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


def books(*given: ConditionVerdict) -> tuple[Verdicts, StringIO]:
    stream = StringIO()
    kept = Verdicts(["conserved"], EventLog(stream))
    for number, verdict in enumerate(given, 1):
        kept.note(f"s{number}", {"conserved": verdict})
    return kept, stream


def test_every_snapshot_counts_once() -> None:
    kept, _ = books(HOLDS, VIOLATED, ERROR, UNDECIDED, WORSE)
    kept.skipped()
    (status,) = kept.status(pending=True)
    assert (status.holds, status.violated, status.error, status.undecided, status.skipped) == (1, 2, 1, 1, 1)
    assert (status.judged, status.committed, status.pending) == (3, 6, True)
    assert (status.snapshot, status.latest) == ("s5", WORSE)
    assert (status.violation_snapshot, status.violation) == ("s2", VIOLATED)


def test_a_violation_is_logged_every_time_and_a_failure_once() -> None:
    _, stream = books(HOLDS, HOLDS, VIOLATED, WORSE, ERROR, ERROR, UNDECIDED, HOLDS)
    lines = [line.partition(" ")[2] for line in stream.getvalue().splitlines()]
    assert lines == [
        "holds condition=conserved snapshot=s1 found=8",
        "warning: violated condition=conserved snapshot=s3 found=7 expected=8",
        "warning: violated condition=conserved snapshot=s4 found=6 expected=8",
        "warning: not judged condition=conserved snapshot=s5 reason=\"KeyError: 'z' (bank.py:3, in total())\"",
        'warning: not judged condition=conserved snapshot=s7 reason="it was removed"',
        "holds condition=conserved snapshot=s8 found=8",
    ]


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
def test_a_violation_fails_and_so_does_a_function_that_never_worked(
    given: list[ConditionVerdict], failed: bool
) -> None:
    (status,) = books(*given)[0].status(pending=False)
    assert status.failed is failed


def test_a_violation_is_remembered_after_a_restart_of_the_coordinator() -> None:
    first, second = (books(*given)[0].status(pending=False) for given in ([HOLDS, VIOLATED], [HOLDS, HOLDS]))
    (whole,) = merged([first, second])
    assert (whole.holds, whole.violated, whole.failed) == (3, 1, True)
    assert (whole.violation_snapshot, whole.violation, whole.latest) == ("s2", VIOLATED, HOLDS)
    (unjudged,) = merged([first, [ConditionStatus("conserved", pending=True)]])
    assert (unjudged.latest, unjudged.pending) == (VIOLATED, True)


def test_verdicts_are_kept_of_the_newest_snapshots_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verdicts, "KEPT_MAX", 2)
    kept, _ = books(HOLDS, VIOLATED, HOLDS)
    assert [kept.of(name) for name in ("s1", "s2", "s3")] == [{}, {"conserved": VIOLATED}, {"conserved": HOLDS}]
