"""Stable predicates on pictures made by hand, and against definitions that are too slow for anything else (G2)."""

from itertools import chain, combinations, pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from strobe.causality.pictures import Picture, Stance
from strobe.causality.predicates import deadlock, garbage, termination
from strobe.declarations import Declared, Waits

NAMES = ("a", "b", "c", "d")


def waiting(**waits):
    """A picture in which processes wait as given; those named nowhere else wait for nothing."""
    names = dict.fromkeys((*waits, *NAMES))
    return Picture({name: Stance(Declared(waits=waits.get(name))) for name in names})


def replaced(picture, **fields):
    values = {name: getattr(picture, name) for name in picture.__struct_fields__}
    return Picture(**{**values, **fields})


# Deadlock


def test_a_cycle_of_waits_for_all_is_a_deadlock_and_the_cycle_is_shown():
    picture = waiting(a=Waits.all("b", "d"), b=Waits.all("c"), c=Waits.all("a"))
    found = deadlock(picture)
    assert found.holds
    assert found.waits == {"a": ("b",), "b": ("c",), "c": ("a",)}
    assert found.cores == (("a", "b", "c"),)
    assert str(found) == "deadlocked: a waits for b waits for c waits for a"


def test_a_cycle_of_waits_for_any_is_none_while_one_way_out_is_left():
    out = waiting(a=Waits.any("b", "d"), b=Waits.any("a"))
    assert not deadlock(out).holds
    knot = waiting(a=Waits.any("b", "c"), b=Waits.any("a"), c=Waits.any("a", "b"))
    assert [set(core) for core in deadlock(knot).cores] == [{"a", "b", "c"}]


def test_mixed_and_nested_waits_are_taken_as_they_are_written():
    stuck = Waits.any(Waits.all("b", "d"), Waits.all("c", "d"))
    assert deadlock(waiting(a=stuck, b=Waits.all("a"), c=Waits.any("a"))).processes == ("a", "b", "c")
    assert not deadlock(waiting(a=Waits.any(Waits.all("b", "d"), "c"), b=Waits.all("a"))).holds


def test_who_waits_behind_a_deadlock_is_deadlocked_and_not_part_of_its_core():
    found = deadlock(waiting(a=Waits.all("b"), b=Waits.all("a"), c=Waits.all("a", "d")))
    assert found.processes == ("a", "b", "c")
    assert found.cores == (("a", "b"),)
    assert str(found) == "deadlocked: a waits for b waits for a; behind them c"


def test_who_waits_for_itself_is_deadlocked():
    assert str(deadlock(waiting(a=Waits.all("a")))) == "deadlocked: a waits for a"


@pytest.mark.parametrize("way", ["granted", "asked"])
def test_a_grant_or_a_request_in_flight_is_no_deadlock_yet(way):
    picture = waiting(a=Waits.all("b"), b=Waits.all("a"))
    assert deadlock(picture).holds
    for wait in (("a", "b"), ("b", "a")):
        assert not deadlock(replaced(picture, **{way: frozenset({wait})})).holds
    assert deadlock(replaced(picture, **{way: frozenset({("a", "c"), ("c", "a")})})).holds


def test_of_a_wait_for_all_the_rest_still_counts_after_one_grant():
    picture = waiting(a=Waits.all("b", "c"), b=Waits.all("a"), c=Waits.all("a"))
    found = deadlock(replaced(picture, granted=frozenset({("a", "b")})))
    assert found.waits == {"a": ("c",), "b": ("a",), "c": ("a",)}
    assert found.cores == (("a", "c"),)


def test_waits_that_time_out_are_said_not_to_be_stable():
    found = deadlock(waiting(a=Waits.all("b", times_out=True), b=Waits.all("a")))
    assert not found.holds
    assert found.until_timeout == ("a", "b")
    assert str(found) == "nobody is deadlocked; stuck only until a wait times out, which is not stable: a, b"
    inner = deadlock(waiting(a=Waits.all("c", Waits.any("b", times_out=True)), b=Waits.all("a"), c=Waits.all("c")))
    assert inner.processes == ("a", "b", "c")


def test_nothing_is_known_of_a_process_that_is_not_in_the_view():
    assert not deadlock(waiting(a=Waits.all("elsewhere"))).holds


def test_one_who_waits_for_all_of_many_that_are_freed_one_by_one_is_looked_at_once_for_each():
    """G2: in time proportional to the waits. With their square, this would take minutes."""
    names = [f"p{number}" for number in range(30_000)]
    waits = dict.fromkeys(names[:1]) | {name: Waits.all(before) for before, name in pairwise(names)}
    waits |= {f"{name}-and-back": Waits.all("all") for name in names[:5000]}
    assert not deadlock(waiting(**waits, all=Waits.all(*names))).holds
    found = deadlock(waiting(**waits, all=Waits.all(*names, "all")))
    assert len(found.processes) == 5001
    assert found.cores == (("all",),)


def test_deadlocks_that_others_wait_behind_are_each_looked_at_once():
    cycles = {f"p{n}": Waits.all(f"p{n ^ 1}") for n in range(6000)}
    tail = {f"t{n}": Waits.all(f"t{n + 1}") for n in range(6000)} | {"t6000": Waits.any(*cycles)}
    assert len(deadlock(waiting(**cycles, **tail)).cores) == 3000


# Against the definition: the least set is the intersection of all that are closed

members = st.recursive(
    st.sampled_from(NAMES), lambda inner: st.builds(Waits, st.lists(inner, max_size=3).map(tuple), st.booleans())
)
waits = st.builds(Waits, st.lists(members, min_size=1, max_size=3).map(tuple), st.booleans(), st.booleans())
pairs = st.frozensets(st.tuples(st.sampled_from(NAMES), st.sampled_from(NAMES)), max_size=3)


@st.composite
def pictures(draw):
    chosen = draw(st.fixed_dictionaries({name: st.none() | waits for name in NAMES}))
    return replaced(waiting(**chosen), granted=draw(pairs), asked=draw(pairs))


def met(picture, process, wait, able):
    if isinstance(wait, str):
        return wait in able or (process, wait) in picture.granted | picture.asked
    if wait is None or wait.times_out or not wait.processes:
        return True
    return (any if wait.any_suffices else all)(met(picture, process, one, able) for one in wait.processes)


def closed(picture, able):
    return all(
        process in able or not met(picture, process, stance.declared.waits, able)
        for process, stance in picture.stances.items()
    )


def least(picture):
    subsets = chain.from_iterable(combinations(NAMES, size) for size in range(len(NAMES) + 1))
    return set.intersection(*(set(one) for one in subsets if closed(picture, set(one))))


@given(pictures())
def test_the_deadlocked_are_those_outside_every_least_fixed_point(picture):
    found = deadlock(picture)
    assert set(found.processes) == set(NAMES) - least(picture)
    assert not set(found.until_timeout) & set(found.processes)


@given(pictures())
def test_a_core_is_enough_to_see_the_deadlock_by(picture):
    """G2: were everybody else able to proceed, those of a core still would not."""
    found = deadlock(picture)
    assert bool(found.cores) == found.holds
    for core in found.cores:
        others = set(NAMES) - set(core)
        assert not any(met(picture, one, picture.stances[one].declared.waits, others) for one in core)


# Termination


def test_terminated_is_none_active_no_timer_and_nothing_in_flight():
    quiet = Picture({name: Stance(Declared(active=False)) for name in "ab"})
    assert termination(quiet).holds
    assert str(termination(quiet)).startswith("terminated")
    busy = [
        (replaced(quiet, stances={**quiet.stances, "b": Stance()}), "not terminated; active: b"),
        (
            replaced(quiet, stances={**quiet.stances, "b": Stance(Declared(active=False), timers=1)}),
            "not terminated; timers pending at b",
        ),
        (replaced(quiet, in_flight={"a->b": 2}), "not terminated; in flight on a->b"),
    ]
    for picture, text in busy:
        assert not termination(picture).holds
        assert str(termination(picture)) == text


# Garbage


def keeping(awake=("a",), receiving=(), carried=(), **references):
    """A picture in which a keeps all these things, and b is there as well."""
    declared = Declared(references={holder: tuple(names) for holder, names in references.items()}, active="a" in awake)
    stances = {"a": Stance(declared), "b": Stance(Declared(active="b" in awake, references={"b": ("a",)}))}
    return Picture(stances, {}, frozenset(receiving), carried=frozenset(carried))


def test_what_nobody_refers_to_is_garbage_also_where_it_refers_to_itself():
    found = garbage(keeping(a=["x"], x=["y"], y=[], u=["v"], v=["u"]))
    assert found.garbage == ("b", "u", "v")
    assert found.things == 7 - 1
    assert str(found) == "3 of 6 are garbage: b, u, v"


def test_what_a_message_refers_to_is_not_garbage_nor_what_that_refers_to():
    assert garbage(keeping(a=[], x=["y"], y=[], z=[], carried=["x"])).garbage == ("b", "z")


def test_a_process_that_cannot_act_keeps_nothing_alive_until_a_message_comes():
    assert garbage(keeping(awake=(), a=["x"], x=[])).garbage == ("a", "b", "x")
    assert garbage(keeping(awake=(), receiving=["a"], a=["x"], x=[])).garbage == ("b",)
    assert garbage(keeping(awake=("b",), a=["x"], x=[])).garbage == ()


def test_who_declares_no_references_cannot_be_garbage():
    idle = Picture({name: Stance(Declared(active=False)) for name in "ab"})
    assert garbage(idle).garbage == ()
    assert str(garbage(idle)) == "nothing declares what it refers to"


def test_who_declares_no_references_may_send_on_all_of_its_channels():
    """G2: a client that says nothing of whom it knows keeps the server alive that waits for it, and what that holds."""
    server = Stance(Declared(active=False, references={"server": ("x",), "x": (), "y": ()}))
    stances = {"client": Stance(), "relay": Stance(Declared(active=False)), "server": server}
    picture = Picture(stances, sends_to={"client": {"relay"}, "relay": {"server"}})
    assert garbage(picture).garbage == ("y",)
    asleep = replaced(picture, stances={**stances, "client": Stance(Declared(active=False))})
    assert garbage(asleep).garbage == ("server", "x", "y")
