"""When a run of `strobe up` has failed: snapshots were tried, and none of the last ones completed (E13)."""

from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from strobe.cli.live.run_outcome import LAST, RunOutcome
from strobe.runtime.messages.api_documents import ABORTED, COMMITTED, TakeResult


def finished(number: int, committed: bool, started_us: int = 100) -> Any:
    outcome = COMMITTED if committed else ABORTED
    return SimpleNamespace(id=f"1-{number}", outcome=outcome, reason=f"because {number}", started_us=started_us)


def status(*snapshots: Any) -> Any:
    return SimpleNamespace(finished=list(snapshots))


def test_a_run_that_tries_no_snapshot_has_not_failed() -> None:
    outcomes = RunOutcome(50)
    outcomes.update(status())
    assert outcomes.problem is None


def test_a_run_without_a_commit_has_failed_with_the_last_reason() -> None:
    outcomes = RunOutcome(50)
    outcomes.update(status(finished(1, False)))
    outcomes.update(status(finished(1, False), finished(2, False)))
    assert outcomes.problem == "no snapshot completed (2 tried); the last one: 1-2 was aborted: because 2"


def test_snapshots_begun_before_the_run_do_not_count() -> None:
    outcomes = RunOutcome(50)
    outcomes.update(status(finished(1, True, started_us=49), finished(2, False)))
    assert outcomes.problem is not None


@pytest.mark.parametrize(("aborted", "fails"), [(LAST - 1, False), (LAST, True), (LAST + 5, True)])
def test_a_run_fails_when_the_last_ones_were_all_aborted(aborted: int, fails: bool) -> None:
    outcomes = RunOutcome(50)
    outcomes.update(status(finished(0, True), *(finished(number, False) for number in range(1, aborted + 1))))
    assert (outcomes.problem is not None) is fails


def test_a_requested_last_snapshot_counts() -> None:
    outcomes = RunOutcome(50)
    outcomes.update(status(finished(1, False)))
    outcomes.take(TakeResult("1-2", COMMITTED, ""))
    assert outcomes.problem is None


@given(st.lists(st.booleans(), max_size=40), st.integers(1, 7))
def test_the_verdict_does_not_depend_on_how_updates_overlap(commits: list[bool], portion: int) -> None:
    snapshots = [finished(number, committed) for number, committed in enumerate(commits)]
    outcomes = RunOutcome(50)
    for first in range(len(snapshots)):
        outcomes.update(status(*snapshots[max(0, first - portion) : first + 1]))
    assert (outcomes.problem is not None) is (bool(commits) and not any(commits[-LAST:]))
