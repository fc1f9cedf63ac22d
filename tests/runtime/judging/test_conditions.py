"""Each declared condition is judged by itself: invariants, and stable predicates that processes declare for (E12)."""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import msgspec
import pytest
from tests.runtime.judging.test_evaluation import Shelf, verdicts
from tests.runtime.recovery.test_trial_restore import FRAMES, Branch, Coins, bank, taken, with_state

from strobe import Channel, Declares, GlobalState, Process, System, Waits
from strobe.causality.predicate_input import predicate_input_of
from strobe.declarations import Declared, MessageRule
from strobe.detection import Detecting
from strobe.protocol import InFlight, Snapshot
from strobe.runtime.connectors.system_file import ProgramWithOwnLoop
from strobe.runtime.judging import evaluation
from strobe.runtime.judging.evaluation import Evaluator, conditions_of, needs_judge
from strobe.runtime.messages.verdicts import ConditionVerdict

HOLDS = ConditionVerdict("holds")


def no_debt(snapshot: GlobalState) -> bool | str:
    balance = snapshot.states["a"].balance
    return balance >= 0 or f"a owes {-balance}"


def broken(snapshot: GlobalState) -> bool:
    raise ValueError("no")


def few_in_flight(snapshot: GlobalState) -> bool:
    return snapshot.in_flight["a->b"] == [Coins(4)] and snapshot.sent == {"a->b": 2} and snapshot.events["a"] == 1


INVARIANTS = [no_debt, "a.balance < 20", few_in_flight]


def judged(system: System, snapshot: Snapshot, kind: type[Evaluator] = Evaluator, **more: Any) -> dict[str, Any]:
    shelf = Shelf(snapshot)
    return verdicts(kind(system, shelf.load), shelf.question(0, **more))


def check_invariants(kind: type[Evaluator]) -> None:
    """Check that a judge finds all that is violated, and nothing else."""
    system = bank(invariants=INVARIANTS)
    assert judged(system, taken(), kind) == {
        "conserved": ConditionVerdict("holds", "17", "17"),
        "no_debt": HOLDS,
        "a.balance < 20": HOLDS,
        "few_in_flight": HOLDS,
    }
    assert judged(system, taken(balance=-2), kind)["no_debt"] == ConditionVerdict("violated", found="a owes 2")
    found = judged(system, taken(balance=30), kind)["a.balance < 20"]
    assert found == ConditionVerdict("violated", found="a.balance = 30")


def test_E12_G1_every_invariant_is_judged_on_a_snapshot() -> None:
    check_invariants(Evaluator)


class SkipsLast(Evaluator):
    """A broken judge: it leaves out the last condition."""

    def _checks(self, question: Any) -> dict[str, Any]:
        return dict(list(super()._checks(question).items())[:-1])


class StopsAtFirst(Evaluator):
    """A broken judge: it evaluates one condition only."""

    def judge(self, question: Any) -> Iterator[Any]:
        first, second, *_ = super().judge(question)
        yield first
        yield msgspec.structs.replace(second, running="")


class AlwaysHolds(Evaluator):
    """A broken judge: nothing is ever violated."""

    def _verdict(self, check: Callable[[], ConditionVerdict]) -> ConditionVerdict:
        verdict = super()._verdict(check)
        return HOLDS if verdict.verdict == "violated" else verdict


@pytest.mark.parametrize("mutant", [SkipsLast, StopsAtFirst, AlwaysHolds])
def test_a_judge_that_skips_an_invariant_is_caught(mutant: type[Evaluator]) -> None:
    with pytest.raises((AssertionError, KeyError)):
        check_invariants(mutant)


def test_an_invariant_that_fails_does_not_affect_the_others() -> None:
    found = judged(bank(invariants=[broken, no_debt]), taken(balance=-1))
    assert (found["conserved"].verdict, found["no_debt"].verdict) == ("holds", "violated")
    assert found["broken"].verdict == "error"
    line = broken.__code__.co_firstlineno + 1
    problem = f"fails: ValueError: no (tests/runtime/judging/test_conditions.py:{line}, in broken())"
    assert found["broken"].problem == problem


def test_an_invariant_that_returns_nothing_is_an_error_with_its_place() -> None:
    def forgets(snapshot: GlobalState) -> Any:
        snapshot.states["a"].balance >= 0  # noqa: B015

    verdict = judged(bank(invariants=[forgets]), taken())["forgets"]
    assert verdict.verdict == "error"
    assert "the invariant forgets (tests/runtime/judging/test_conditions.py:" in verdict.problem
    assert "returned None; return True if it holds" in verdict.problem


def test_a_condition_on_a_departed_process_is_undecided() -> None:
    system = bank(invariants=["a.balance > 0 and z.balance > 0"], processes=bank().processes | {"z": Branch()})
    verdict = judged(system, taken())["a.balance > 0 and z.balance > 0"]
    assert verdict.verdict == "undecided"
    assert verdict.problem.startswith("process 'z' is not in this snapshot")


def test_a_state_that_does_not_decode_fails_all_but_the_predicates() -> None:
    system = bank(invariants=[no_debt], processes=bank().processes | {"a": Waiting()})
    found = judged(system, with_state(taken(), "a", data=b"\x05"))
    assert {name: one.verdict for name, one in found.items()} == {
        "conserved": "error",
        "no_debt": "error",
        "deadlock": "holds",
        "termination": "not_yet",
    }


def test_a_removed_snapshot_leaves_every_condition_undecided() -> None:
    system = bank(invariants=[no_debt], processes=bank().processes | {"a": Waiting()})
    found = verdicts(Evaluator(system, Shelf().load), Shelf().question(3))
    assert {name: one.verdict for name, one in found.items()} == dict.fromkeys(conditions_of(system), "undecided")


def test_a_condition_that_ended_the_judge_comes_last() -> None:
    system, shelf = bank(invariants=INVARIANTS), Shelf(taken())
    parts = Evaluator(system, shelf.load).judge(shelf.question(0, last=("conserved", "no_debt")))
    assert [part.running for part in parts] == ["a.balance < 20", "few_in_flight", "conserved", "no_debt", ""]


# Stable predicates


class Waiting(Branch):
    """Declares what it waits for, and that it acts only when a message arrives."""

    def waits_for(self) -> Waits | None:
        return Waits.all("b")

    def active(self) -> bool:
        return False


class Holding(Branch):
    def references(self) -> list[str]:
        return []


class Grant(msgspec.Struct, tag=True):
    declares = Declares(grants=True)


def clerks() -> System:
    return System({"a": Waiting(), "b": Waiting()}, [Channel("a", "b")], [Grant])


RULES = (MessageRule("type", "Coins", grants=True),)


def stuck(in_flight: bool) -> Snapshot:
    """Return a snapshot in which a and b wait for each other; `in_flight`: with a grant from a to b on its way."""
    snapshot = taken()
    for name, other in (("a", "b"), ("b", "a")):
        declared = Declared(Waits.all(other), active=False, messages=RULES)
        snapshot = with_state(snapshot, name, declared=declared)
    snapshot = with_state(snapshot, "c", declared=Declared(active=False))
    frames = (InFlight(FRAMES[0], consumed=1),) if in_flight else ()
    fragment = msgspec.structs.replace(snapshot.fragments["b"], in_flight={"a->b": frames})
    return msgspec.structs.replace(snapshot, fragments=snapshot.fragments | {"b": fragment})


def predicates_of(snapshot: Snapshot, system: System | None = None) -> dict[str, Any]:
    processes = {"a": Waiting(), "b": Waiting(), "c": Branch()}
    return judged(system or bank(conserved=None, processes=processes), snapshot)


def check_deadlock() -> None:
    assert predicates_of(stuck(in_flight=False))["deadlock"] == ConditionVerdict("violated", found="a→b→a")
    assert predicates_of(stuck(in_flight=True))["deadlock"] == HOLDS


def test_E12_G2_a_deadlock_is_a_violation_and_a_grant_in_flight_is_none() -> None:
    check_deadlock()


@pytest.mark.parametrize("ignored", ["granted", "declarations"])
def test_a_judge_that_reports_a_phantom_or_misses_a_deadlock_is_caught(
    ignored: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def without(snapshot: Snapshot) -> Any:
        facts = predicate_input_of(snapshot)
        return msgspec.structs.replace(facts, **{ignored: type(getattr(facts, ignored))()})

    monkeypatch.setattr(evaluation, "predicate_input_of", without)
    with pytest.raises(AssertionError):
        check_deadlock()


def test_termination_is_a_fact_that_holds_or_does_not_hold_yet() -> None:
    assert predicates_of(stuck(in_flight=True))["termination"] == ConditionVerdict(
        "not_yet", found="not terminated; in flight on a->b"
    )
    found = predicates_of(stuck(in_flight=False))["termination"]
    assert found.verdict == "holds"
    assert found.found.startswith("terminated: no process is active")


def test_garbage_is_a_fact_that_names_what_is_unreachable() -> None:
    system = bank(conserved=None, processes=bank().processes | {"a": Holding()})
    assert conditions_of(system) == ("garbage",)
    snapshot = with_state(stuck(in_flight=False), "a", declared=Declared(references={"a": ()}, active=False))
    assert judged(system, snapshot)["garbage"] == ConditionVerdict("holds", found="1 of 1 is garbage: a")
    assert judged(system, taken())["garbage"].verdict == "not_yet"


def test_only_predicates_that_a_process_declares_for_are_judged() -> None:
    assert conditions_of(clerks()) == ("deadlock", "termination")
    assert conditions_of(System({"a": Detecting(Branch())}, [])) == ()
    assert conditions_of(System({"a": Detecting(Waiting())}, [])) == ("deadlock", "termination")
    assert not needs_judge(System({"a": Branch()}, []))


def test_declarations_of_a_program_with_its_own_loop_are_found_in_its_snapshots() -> None:
    processes: dict[str, Process] = {name: ProgramWithOwnLoop(name) for name in "abc"}
    system = bank(conserved=None, processes=processes)
    assert (conditions_of(system), needs_judge(system)) == ((), True)
    assert judged(system, taken()) == {}
    found = judged(system, stuck(in_flight=False))
    assert {name: verdict.verdict for name, verdict in found.items()} == {
        "deadlock": "violated",
        "termination": "holds",
    }


def test_a_predicate_once_declared_is_judged_on_every_later_snapshot() -> None:
    shelf = Shelf(stuck(in_flight=False), taken())
    processes: dict[str, Process] = {name: ProgramWithOwnLoop(name) for name in "abc"}
    evaluator = Evaluator(bank(conserved=None, processes=processes), shelf.load)
    on = partial(verdicts, evaluator)
    assert set(on(shelf.question(0))) == set(on(shelf.question(1))) == {"deadlock", "termination"}
