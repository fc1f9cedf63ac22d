"""D7: logs of vector clocks become traces, or are rejected with every wrong line."""

import random

import pytest
from tests.causality.small_lattices import all_states, random_trace
from tests.traces.clock_rules import broken_rules, change, clocks_of_some_run, named_for

from strobe.causality.lattice.run import TraceRun
from strobe.causality.trace import Trace
from strobe.traces.clock_logs import ClockLogInvalid, read_log, to_log, to_trace


def cuts_of(trace: Trace) -> set[frozenset[tuple[str, int]]]:
    """All consistent cuts, without processes that have no event in a cut, since a log does not know them."""
    run = TraceRun(trace)
    return {
        frozenset((process, state) for process, state in zip(run.processes, cut, strict=True) if state)
        for cut in all_states(run)
    }


def test_D7_a_log_becomes_a_trace_with_the_same_consistent_cuts() -> None:
    for seed in range(30):
        trace = random_trace(seed)
        converted = to_trace(read_log("".join(to_log(trace)))[0], "log")
        assert cuts_of(converted) == cuts_of(trace)


def test_D7_every_line_that_breaks_a_clock_rule_is_named() -> None:
    """Break several clocks of a log, each in a different way: all of their lines are named, and no other line."""
    lines = "".join(f'tick {n}\nhost{h} {{"host{h}":{n}}}\n' for h in range(20) for n in range(1, 11)).splitlines()
    broken = random.Random(1).sample(range(20), 5)
    clocks = [
        '{"elsewhere":1}',
        '{"host%d":10,"nobody":1}',
        '{"host%d":9}',
        '{"host%d":12}',
        '{"host%d":10,"host0":99}',
    ]
    expected = []
    for host, clock in zip(broken, clocks, strict=True):
        place = host * 20 + 19
        lines[place] = f"host{host} " + (clock % host if "%d" in clock else clock)
        expected.append(place + 1)
    with pytest.raises(ClockLogInvalid) as error:
        to_trace(read_log("\n".join(lines))[0], "log")
    assert [violation.line for violation in error.value.impossible] == sorted(expected)


def test_D7_lines_are_named_for_exactly_the_rules_that_they_break() -> None:
    """Change counts anywhere in a log: the same lines are named for the same rules as by checking all pairs of events.

    The rules are those of docs/trace.md, taken literally: a line that inherits an earlier line's error is named too.
    """
    for seed in range(100):
        events = clocks_of_some_run(seed, long=80)
        assert named_for(events) == set(), seed
        change(events, random.Random(seed))
        assert named_for(events) == broken_rules(events), (seed, events)
