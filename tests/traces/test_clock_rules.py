"""Logs of impossible clocks: every line that breaks a rule is named, as by a brute-force checker."""

import random

import pytest
from tests.traces.clock_rules import Clocks, broken_rules, change, clocks_of_some_run, named_for


@pytest.mark.parametrize(
    ("events", "expected"),
    [
        pytest.param(
            [("a", {"a": 1}), ("b", {"a": 1, "b": 1}), ("c", {"b": 1, "c": 1}), ("c", {"b": 1, "c": 2})],
            {(3, 4), (4, 4)},
            id="what was not brought along is still missing in the next event",
        ),
        pytest.param(
            [
                ("a", {"a": 1}),
                ("b", {"a": 1, "b": 1}),
                ("b", {"b": 2}),
                ("b", {"b": 3}),
                ("c", {"c": 1, "b": 3}),
            ],
            {(3, 3), (4, 4), (5, 4)},
            id="what a host forgot is missing from all its later events and from those that know of them",
        ),
        pytest.param(
            [("a", {"a": 1, "z": 1}), ("a", {"a": 2, "z": 1}), ("b", {"a": 2, "b": 1, "z": 1})],
            {(1, 2), (2, 2), (3, 2)},
            id="a host without events is handed on",
        ),
        pytest.param(
            [("a", {"a": 1, "b": 2}), ("a", {"a": 2, "b": 2}), ("b", {"b": 1}), ("b", {"b": 2, "a": 2})],
            {(1, 5), (2, 5), (4, 5)},
            id="two events know of one that knows of both",
        ),
        pytest.param(
            [("a", {"b": 1}), ("a", {"a": 2}), ("a", {"a": 5}), ("b", {"b": 1, "a": 6}), ("b", {"b": 2, "a": 4})],
            {(1, 1), (3, 1), (4, 2), (5, 3)},
            id="of a host with one line that cannot be read, one event is not known",
        ),
        pytest.param(
            [("a", {"b": 1}), ("a", {"a": 2}), ("a", {"a": 4}), ("a", {"a": 5}), ("a", {"a": 7}), ("b", {"b": 1})],
            {(1, 1), (3, 1), (5, 1)},
            id="one line that cannot be read stands for one event, and not for one in each gap",
        ),
        pytest.param(
            [("a", {}), ("a", {}), ("a", {"a": 2}), ("a", {"a": 4}), ("a", {"a": 6})],
            {(1, 1), (2, 1), (5, 1)},
            id="two lines that cannot be read stand for two events in whichever gaps",
        ),
    ],
)
def test_every_line_is_named_for_every_rule_that_it_breaks(events: Clocks, expected: set[tuple[int, int]]) -> None:
    assert named_for(events) == broken_rules(events) == expected


def test_lines_are_named_exactly_for_the_rules_that_they_break() -> None:
    """D7: for any changed counts of a log, the same lines and rules are named as by a brute-force checker."""
    seen: set[int] = set()
    for seed in range(600):
        events = clocks_of_some_run(seed)
        assert named_for(events) == set(), seed
        change(events, random.Random(seed))
        expected = broken_rules(events)
        assert named_for(events) == expected, (seed, events)
        seen |= {rule for _, rule in expected}
    assert seen == {1, 2, 3, 4, 5}
