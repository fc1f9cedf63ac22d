"""Vector clocks and hybrid logical clocks."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.causality.brute_force import events_of, happens_before
from tests.causality.strategies import traces

from strobe.causality.clocks import HybridTime, VectorClock, vector_clocks
from strobe.causality.trace import Trace
from strobe.errors import UsageError

CLOCKS = st.dictionaries(st.sampled_from("abc"), st.integers(0, 3)).map(VectorClock)
TIMES = st.builds(HybridTime, st.integers(0, 5), st.integers(0, 3))


def test_a_process_that_is_not_named_counts_zero() -> None:
    clock = VectorClock({"a": 2, "b": 0})
    assert clock["b"] == 0
    assert clock == VectorClock({"a": 2})
    assert hash(clock) == hash(VectorClock({"a": 2}))
    assert list(clock) == ["a"]


def test_increment_counts_one_event_and_leaves_the_clock_as_it_was() -> None:
    clock = VectorClock({"a": 1})
    assert clock.increment("a") == VectorClock({"a": 2})
    assert clock.increment("b") == VectorClock({"a": 1, "b": 1})
    assert clock == VectorClock({"a": 1})


def test_merge_takes_the_greater_count_of_each_process() -> None:
    assert VectorClock({"a": 3, "b": 1}).merge(VectorClock({"b": 2, "c": 1})) == VectorClock({"a": 3, "b": 2, "c": 1})


def test_clocks_compare_as_the_events_do() -> None:
    first, second, apart = VectorClock({"a": 1}), VectorClock({"a": 1, "b": 1}), VectorClock({"b": 1, "c": 1})
    assert first.happened_before(second)
    assert not second.happened_before(first)
    assert second.concurrent(apart)
    assert not second.happened_before(apart)
    assert not apart.happened_before(second)


@given(CLOCKS, CLOCKS)
def test_two_clocks_are_either_equal_or_ordered_or_concurrent(one: VectorClock, other: VectorClock) -> None:
    cases = [one == other, one.happened_before(other), other.happened_before(one), one.concurrent(other)]
    assert sum(cases) == 1


@given(CLOCKS, CLOCKS)
def test_merge_is_the_least_clock_that_includes_both(one: VectorClock, other: VectorClock) -> None:
    merged = one.merge(other)
    assert merged.includes(one)
    assert merged.includes(other)
    assert all(merged[process] in (one[process], other[process]) for process in "abc")
    assert merged == other.merge(one)


@given(TIMES, TIMES, st.integers(0, 6))
def test_hybrid_time_only_goes_forward(own: HybridTime, other: HybridTime, physical: int) -> None:
    assert own < own.tick(physical)
    assert max(own, other) < own.merge(other, physical)


@given(TIMES, TIMES, st.integers(0, 6))
def test_hybrid_time_is_the_highest_physical_time_known(own: HybridTime, other: HybridTime, physical: int) -> None:
    assert own.tick(physical).time == max(own.time, physical)
    assert own.merge(other, physical).time == max(own.time, other.time, physical)


def test_hybrid_counter_starts_again_when_physical_time_has_moved_on() -> None:
    assert HybridTime(5, 7).tick(6) == HybridTime(6, 0)
    assert HybridTime(5, 7).tick(5) == HybridTime(5, 8)
    assert HybridTime(5, 7).tick(3) == HybridTime(5, 8)


def test_hybrid_merge_follows_the_paper() -> None:
    assert HybridTime(5, 1).merge(HybridTime(5, 4), 2) == HybridTime(5, 5)
    assert HybridTime(5, 1).merge(HybridTime(7, 4), 2) == HybridTime(7, 5)
    assert HybridTime(5, 1).merge(HybridTime(3, 4), 2) == HybridTime(5, 2)
    assert HybridTime(5, 1).merge(HybridTime(7, 4), 9) == HybridTime(9, 0)


@given(traces())
def test_vector_clocks_of_a_trace_agree_with_the_closure(trace: Trace) -> None:
    clocks, pairs = vector_clocks(trace), happens_before(trace)
    for e in events_of(trace):
        past = {d for d in events_of(trace) if (d, e) in pairs} | {e}
        assert clocks[e] == VectorClock({p: sum(d[0] == p for d in past) for p in trace.processes})
        for f in events_of(trace):
            assert clocks.happened_before(e, f) == ((e, f) in pairs)
            assert clocks[e].happened_before(clocks[f]) == ((e, f) in pairs)
            assert clocks.concurrent(e, f) == (e != f and (e, f) not in pairs and (f, e) not in pairs)


@given(traces(), st.sampled_from([("z", 1), ("a", 0), ("a", 99)]))
def test_an_unknown_event_has_no_clock(trace: Trace, event: tuple[str, int]) -> None:
    clocks = vector_clocks(trace)
    with pytest.raises(UsageError):
        clocks[event]
    with pytest.raises(UsageError):
        clocks.happened_before(event, event)
