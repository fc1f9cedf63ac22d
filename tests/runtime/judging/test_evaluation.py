"""Verdicts on what a system declares: every condition is judged by itself, and every failure is a verdict too (E12)."""

import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from tests.runtime.recovery.test_trial_restore import Ledger, bank, taken, with_state

from strobe.errors import SnapshotNotFound
from strobe.process import System
from strobe.protocol import Snapshot, View
from strobe.runtime.connectors.system_file import ProgramWithOwnLoop
from strobe.runtime.judging.evaluation import Evaluator, conditions_of
from strobe.runtime.judging.questions import Question
from strobe.runtime.messages.verdicts import ConditionVerdict

TOTAL = 17
"""The total in `taken()`: 10 and 3 in the states, 4 in flight."""


class Shelf:
    """Snapshots by position; a missing one counts as removed."""

    def __init__(self, *snapshots: Snapshot) -> None:
        self.snapshots = dict(enumerate(snapshots))

    def load(self, snapshot_id: str, position: int) -> Snapshot:
        if position not in self.snapshots:
            raise SnapshotNotFound(snapshot_id, "was removed")
        return self.snapshots[position]

    def question(self, position: int, **more: Any) -> Question:
        return Question(f"snapshot {position}", position, **more)


def judge(system: System, *snapshots: Snapshot, **more: Any) -> list[ConditionVerdict]:
    """Judge these snapshots in order; the first is the oldest."""
    shelf = Shelf(*snapshots)
    evaluator = Evaluator(system, shelf.load)
    questions = [
        shelf.question(position, reference=("snapshot 0", 0) if position else None, **more)
        for position in shelf.snapshots
    ]
    return [verdicts(evaluator, question)["conserved"] for question in questions]


def verdicts(evaluator: Evaluator, question: Question) -> dict[str, ConditionVerdict]:
    """Return all verdicts on one snapshot."""
    found: dict[str, ConditionVerdict] = {}
    for evaluation in evaluator.judge(question):
        assert evaluation.snapshot == question.snapshot
        found |= evaluation.verdicts
    assert evaluation.running == ""
    return found


def test_an_unchanged_value_holds_and_a_changed_value_is_violated() -> None:
    assert judge(bank(), taken(1), taken(2), taken(3, balance=9)) == [
        ConditionVerdict("holds", "17", "17"),
        ConditionVerdict("holds", "17", "17"),
        ConditionVerdict("violated", "17", "16"),
    ]


def test_in_a_new_store_the_initial_states_are_the_reference() -> None:
    assert judge(bank(), taken(), initial=True) == [ConditionVerdict("violated", "0", "17")]
    sound = bank()
    sound.processes["a"].account.balance = TOTAL  # type: ignore[attr-defined]
    assert judge(sound, taken(), initial=True) == [ConditionVerdict("holds", "17", "17")]


def test_the_initial_state_of_a_program_with_its_own_loop_is_unknown() -> None:
    system = bank()
    system.processes["c"] = ProgramWithOwnLoop("c", bytes)
    assert judge(system, taken(), initial=True) == [ConditionVerdict("holds", "17", "17")]


def test_a_restarted_judge_reads_the_reference_from_the_store() -> None:
    shelf = Shelf(taken(1), taken(2, balance=9))
    question = shelf.question(1, reference=("snapshot 0", 0))
    assert verdicts(Evaluator(bank(), shelf.load), question)["conserved"] == ConditionVerdict("violated", "17", "16")


def test_a_removed_reference_is_replaced_by_the_first_judged_snapshot() -> None:
    shelf = Shelf(taken(1), taken(2, balance=9), taken(3, balance=8))
    del shelf.snapshots[0]
    evaluator = Evaluator(bank(), shelf.load)
    questions = [shelf.question(place, reference=("snapshot 0", 0)) for place in (1, 2)]
    assert [verdicts(evaluator, question)["conserved"] for question in questions] == [
        ConditionVerdict("holds", "16", "16"),
        ConditionVerdict("violated", "16", "15"),
    ]


def test_each_generation_has_its_own_reference() -> None:
    shelf = Shelf(taken(1), taken(2, balance=20), taken(3, balance=20), taken(4))
    evaluator = Evaluator(bank(), shelf.load)
    asked = [(0, 0, None), (1, 1, None), (2, 1, ("snapshot 1", 1)), (3, 0, ("snapshot 0", 0))]
    questions = [shelf.question(p, generation=g, reference=r) for p, g, r in asked]
    assert [verdicts(evaluator, question)["conserved"].verdict for question in questions] == ["holds"] * 4


def test_a_snapshot_that_was_removed_is_undecided() -> None:
    shelf = Shelf()
    verdict = verdicts(Evaluator(bank(), shelf.load), shelf.question(7))["conserved"]
    assert verdict.verdict == "undecided"
    assert "snapshot 7 cannot be read" in verdict.problem
    assert "was removed" in verdict.problem


def test_a_process_unknown_to_the_system_makes_it_undecided() -> None:
    snapshot = taken()
    more = View(2, (*snapshot.view.processes, "z"), snapshot.view.channels)
    (verdict,) = judge(bank(), taken(view=more))
    assert verdict.verdict == "undecided"
    assert verdict.problem.startswith("process 'z' joined with another system than the coordinator's")


class Odd:
    """Can be neither compared nor shown."""

    def __eq__(self, other: object) -> bool:
        raise TypeError("never the same")

    def __repr__(self) -> str:
        raise ValueError("nameless")

    __hash__ = None  # type: ignore[assignment]


class Nameless:
    def __repr__(self) -> str:
        raise ValueError("nameless")


def failing(error: BaseException) -> Callable[[Mapping[str, Any], Any], Any]:
    def conserved(states: Mapping[str, Any], messages: Any) -> Any:
        raise error

    return conserved


@pytest.mark.parametrize(
    "error", [ValueError("no"), SystemExit(3), GeneratorExit(), KeyError("z"), MemoryError()], ids=repr
)
def test_a_function_that_raises_is_an_error_with_file_and_line(error: BaseException, monkeypatch: Any) -> None:
    conserved = failing(error)
    line = conserved.__code__.co_firstlineno + 1
    for initial in (False, True):
        (verdict,) = judge(bank(conserved=conserved), taken(), initial=initial)
        assert verdict.verdict == "error"
        assert type(error).__name__ in verdict.problem
        assert verdict.problem.endswith(f"({Path(__file__).relative_to(Path.cwd())}:{line}, in conserved())")


@pytest.mark.parametrize(
    ("value", "problem"),
    [
        (math.nan, "the value nan does not equal itself, so nothing can be compared with it"),
        (Odd(), "values cannot be compared: TypeError: never the same"),
    ],
    ids=["nan", "not comparable"],
)
def test_a_value_that_cannot_be_compared_is_an_error(value: Any, problem: str) -> None:
    (verdict,) = judge(bank(conserved=lambda states, messages: value), taken())
    assert verdict.verdict == "error"
    assert verdict.problem.startswith(problem)


def test_a_long_or_unshowable_value_is_shown_in_few_characters() -> None:
    (verdict,) = judge(bank(conserved=lambda states, messages: "x\n" * 10_000), taken())
    assert (verdict.verdict, len(verdict.found) < 300, "\n" in verdict.found) == ("holds", True, False)
    (verdict,) = judge(bank(conserved=lambda states, messages: Nameless), taken())
    assert verdict.verdict == "holds"
    nameless = Nameless()
    (verdict,) = judge(bank(conserved=lambda states, messages: nameless), taken())
    assert (verdict.verdict, verdict.found) == ("holds", "a Nameless that cannot be shown")


def test_a_state_that_does_not_decode_is_an_error_that_names_the_process() -> None:
    (verdict,) = judge(bank(), with_state(taken(), "a", data=b"\x05"))
    assert verdict.verdict == "error"
    assert verdict.problem.startswith("a: its state does not decode into what capture() returns")
    system = bank()
    system.processes["a"] = Ledger()
    (verdict,) = judge(system, taken())
    assert verdict.verdict == "error"


def test_only_declared_conditions_are_judged() -> None:
    assert conditions_of(bank()) == ("conserved",)
    assert conditions_of(bank(conserved=None)) == ()
