"""Stable predicates on handmade inputs, and compared with definitions that are too slow for real use (G2)."""

from itertools import chain, combinations, pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from strobe.causality.predicate_input import PredicateInput, ProcessDeclaration
from strobe.causality.predicates import deadlock, garbage, termination
from strobe.declarations import Declared, Waits

NAMES = ("a", "b", "c", "d")


def waiting(**waits):
    """Facts in which processes wait as given; all others wait for nothing."""
    names = dict.fromkeys((*waits, *NAMES))
    return PredicateInput({name: ProcessDeclaration(Declared(waits=waits.get(name))) for name in names})


def replaced(facts, **fields):
    values = {name: getattr(facts, name) for name in facts.__struct_fields__}
    return PredicateInput(**{**values, **fields})


# Deadlock


def test_a_cycle_of_waits_for_all_is_a_deadlock_and_the_cycle_is_shown():
    facts = waiting(a=Waits.all("b", "d"), b=Waits.all("c"), c=Waits.all("a"))
    found = deadlock(facts)
    assert found.holds
    assert found.waits == {"a": ("b",), "b": ("c",), "c": ("a",)}
    assert found.cores == (("a", "b", "c"),)
    assert str(found) == "deadlocked: a waits for b waits for c waits for a"


def test_a_cycle_of_waits_for_any_is_no_deadlock_while_one_can_proceed():
    out = waiting(a=Waits.any("b", "d"), b=Waits.any("a"))
    assert not deadlock(out).holds
    knot = waiting(a=Waits.any("b", "c"), b=Waits.any("a"), c=Waits.any("a", "b"))
    assert [set(core) for core in deadlock(knot).cores] == [{"a", "b", "c"}]


def test_mixed_and_nested_waits_are_evaluated_as_written():
    stuck = Waits.any(Waits.all("b", "d"), Waits.all("c", "d"))
    assert deadlock(waiting(a=stuck, b=Waits.all("a"), c=Waits.any("a"))).processes == ("a", "b", "c")
    assert not deadlock(waiting(a=Waits.any(Waits.all("b", "d"), "c"), b=Waits.all("a"))).holds


def test_a_process_waiting_for_a_deadlock_is_not_part_of_its_core():
    found = deadlock(waiting(a=Waits.all("b"), b=Waits.all("a"), c=Waits.all("a", "d")))
    assert found.processes == ("a", "b", "c")
    assert found.cores == (("a", "b"),)
    assert str(found) == "deadlocked: a waits for b waits for a; waiting for them: c"


def test_a_process_that_waits_for_itself_is_deadlocked():
    assert str(deadlock(waiting(a=Waits.all("a")))) == "deadlocked: a waits for a"


@pytest.mark.parametrize("way", ["granted", "asked"])
def test_a_grant_or_a_request_in_flight_is_no_deadlock_yet(way):
    facts = waiting(a=Waits.all("b"), b=Waits.all("a"))
    assert deadlock(facts).holds
    for wait in (("a", "b"), ("b", "a")):
        assert not deadlock(replaced(facts, **{way: frozenset({wait})})).holds
    assert deadlock(replaced(facts, **{way: frozenset({("a", "c"), ("c", "a")})})).holds


def test_after_one_grant_the_rest_of_a_wait_for_all_still_counts():
    facts = waiting(a=Waits.all("b", "c"), b=Waits.all("a"), c=Waits.all("a"))
    found = deadlock(replaced(facts, granted=frozenset({("a", "b")})))
    assert found.waits == {"a": ("c",), "b": ("a",), "c": ("a",)}
    assert found.cores == (("a", "c"),)


def test_waits_that_time_out_are_listed_as_not_stable():
    found = deadlock(waiting(a=Waits.all("b", times_out=True), b=Waits.all("a")))
    assert not found.holds
    assert found.until_timeout == ("a", "b")
    assert str(found) == "no process is deadlocked; stuck only until a wait times out, which is not stable: a, b"
    inner = deadlock(waiting(a=Waits.all("c", Waits.any("b", times_out=True)), b=Waits.all("a"), c=Waits.all("c")))
    assert inner.processes == ("a", "b", "c")


def test_a_wait_for_a_process_outside_the_view_is_no_deadlock():
    assert not deadlock(waiting(a=Waits.all("elsewhere"))).holds


def test_a_wait_for_all_is_examined_once_for_each_freed_process():
    """G2: the time is linear in the number of waits. In quadratic time, this would take minutes."""
    names = [f"p{number}" for number in range(30_000)]
    waits = dict.fromkeys(names[:1]) | {name: Waits.all(before) for before, name in pairwise(names)}
    waits |= {f"{name}-and-back": Waits.all("all") for name in names[:5000]}
    assert not deadlock(waiting(**waits, all=Waits.all(*names))).holds
    found = deadlock(waiting(**waits, all=Waits.all(*names, "all")))
    assert len(found.processes) == 5001
    assert found.cores == (("all",),)


def test_deadlocks_that_others_wait_for_are_each_examined_once():
    cycles = {f"p{n}": Waits.all(f"p{n ^ 1}") for n in range(6000)}
    tail = {f"t{n}": Waits.all(f"t{n + 1}") for n in range(6000)} | {"t6000": Waits.any(*cycles)}
    assert len(deadlock(waiting(**cycles, **tail)).cores) == 3000


# Compared with the definition: the least set is the intersection of all closed sets

members = st.recursive(
    st.sampled_from(NAMES), lambda inner: st.builds(Waits, st.lists(inner, max_size=3).map(tuple), st.booleans())
)
waits = st.builds(Waits, st.lists(members, min_size=1, max_size=3).map(tuple), st.booleans(), st.booleans())
pairs = st.frozensets(st.tuples(st.sampled_from(NAMES), st.sampled_from(NAMES)), max_size=3)


@st.composite
def inputs(draw):
    chosen = draw(st.fixed_dictionaries({name: st.none() | waits for name in NAMES}))
    return replaced(waiting(**chosen), granted=draw(pairs), asked=draw(pairs))


def met(facts, process, wait, able):
    if isinstance(wait, str):
        return wait in able or (process, wait) in facts.granted | facts.asked
    if wait is None or wait.times_out or not wait.processes:
        return True
    return (any if wait.any_suffices else all)(met(facts, process, one, able) for one in wait.processes)


def closed(facts, able):
    return all(
        process in able or not met(facts, process, declaration.declared.waits, able)
        for process, declaration in facts.declarations.items()
    )


def least(facts):
    subsets = chain.from_iterable(combinations(NAMES, size) for size in range(len(NAMES) + 1))
    return set.intersection(*(set(one) for one in subsets if closed(facts, set(one))))


@given(inputs())
def test_the_deadlocked_are_those_outside_every_least_fixed_point(facts):
    found = deadlock(facts)
    assert set(found.processes) == set(NAMES) - least(facts)
    assert not set(found.until_timeout) & set(found.processes)


@given(inputs())
def test_a_core_alone_shows_the_deadlock(facts):
    """G2: even if all other processes could proceed, those of a core could not."""
    found = deadlock(facts)
    assert bool(found.cores) == found.holds
    for core in found.cores:
        others = set(NAMES) - set(core)
        assert not any(met(facts, one, facts.declarations[one].declared.waits, others) for one in core)


# Termination


def test_terminated_means_no_active_process_no_timer_nothing_in_flight():
    quiet = PredicateInput({name: ProcessDeclaration(Declared(active=False)) for name in "ab"})
    assert termination(quiet).holds
    assert str(termination(quiet)).startswith("terminated")
    busy = [
        (replaced(quiet, declarations={**quiet.declarations, "b": ProcessDeclaration()}), "not terminated; active: b"),
        (
            replaced(
                quiet, declarations={**quiet.declarations, "b": ProcessDeclaration(Declared(active=False), timers=1)}
            ),
            "not terminated; timers pending at b",
        ),
        (replaced(quiet, in_flight={"a->b": 2}), "not terminated; in flight on a->b"),
    ]
    for facts, text in busy:
        assert not termination(facts).holds
        assert str(termination(facts)) == text


# Garbage


def keeping(awake=("a",), receiving=(), carried=(), **references):
    """Facts in which a declares all these references, and b exists too."""
    declared = Declared(references={holder: tuple(names) for holder, names in references.items()}, active="a" in awake)
    declarations = {
        "a": ProcessDeclaration(declared),
        "b": ProcessDeclaration(Declared(active="b" in awake, references={"b": ("a",)})),
    }
    return PredicateInput(declarations, {}, frozenset(receiving), carried=frozenset(carried))


def test_an_unreferenced_thing_is_garbage_even_if_it_refers_to_itself():
    found = garbage(keeping(a=["x"], x=["y"], y=[], u=["v"], v=["u"]))
    assert found.garbage == ("b", "u", "v")
    assert found.things == 7 - 1
    assert str(found) == "3 of 6 are garbage: b, u, v"


def test_things_reachable_from_a_message_are_not_garbage():
    assert garbage(keeping(a=[], x=["y"], y=[], z=[], carried=["x"])).garbage == ("b", "z")


def test_an_idle_process_keeps_nothing_alive_until_a_message_arrives():
    assert garbage(keeping(awake=(), a=["x"], x=[])).garbage == ("a", "b", "x")
    assert garbage(keeping(awake=(), receiving=["a"], a=["x"], x=[])).garbage == ("b",)
    assert garbage(keeping(awake=("b",), a=["x"], x=[])).garbage == ()


def test_a_process_that_declares_no_references_cannot_be_garbage():
    idle = PredicateInput({name: ProcessDeclaration(Declared(active=False)) for name in "ab"})
    assert garbage(idle).garbage == ()
    assert str(garbage(idle)) == "no process declares references"


def test_a_process_without_declared_references_may_send_on_all_channels():
    """G2: a client that does not declare whom it knows keeps the waiting server alive, and what the server holds."""
    server = ProcessDeclaration(Declared(active=False, references={"server": ("x",), "x": (), "y": ()}))
    declarations = {
        "client": ProcessDeclaration(),
        "relay": ProcessDeclaration(Declared(active=False)),
        "server": server,
    }
    facts = PredicateInput(declarations, sends_to={"client": {"relay"}, "relay": {"server"}})
    assert garbage(facts).garbage == ("y",)
    asleep = replaced(facts, declarations={**declarations, "client": ProcessDeclaration(Declared(active=False))})
    assert garbage(asleep).garbage == ("server", "x", "y")
