"""Logs of vector clocks: how they are read, which clocks are impossible, and the traces they become."""

import contextlib
import json
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.causality.strategies import traces

from strobe.causality.clocks import vector_clocks
from strobe.causality.trace import Trace
from strobe.causality.trace_lines import Internal, Receive, Send, header_of
from strobe.errors import UsageError
from strobe.protocol.values.view import ChannelSpec, View
from strobe.traces.clock_logs import ClockLogInvalid, find_impossible, parsing, read_log, to_log, to_trace
from strobe.traces.clock_logs.parsing import _Lines
from strobe.traces.descriptions import describe

LOG = """\
ask
a {"a":1}
hear and answer
b {"b":1, "a":1}
get the answer
a {"a":2, "b":1}
"""


def log_of(*events: tuple[str, dict[str, int]]) -> str:
    return "".join(f"event {n}\n{host} {json.dumps(clock)}\n" for n, (host, clock) in enumerate(events, 1))


def problems(*events: tuple[str, dict[str, int]]) -> dict[int, str]:
    """Return what is impossible, by the number of the event."""
    (execution,) = read_log(log_of(*events))
    found = find_impossible(execution)
    assert len({each.line for each in found}) == len(found), found
    return {each.line // 2: each.problem for each in found}


class TestReading:
    def test_the_default_parser_is_that_of_shiviz(self) -> None:
        (execution,) = read_log(LOG)
        assert [(each.line, each.host, each.event) for each in execution.events] == [
            (2, "a", "ask"),
            (4, "b", "hear and answer"),
            (6, "a", "get the answer"),
        ]

    def test_other_groups_become_fields(self) -> None:
        parser = r"(?<time>\d+) (?<host>\w+) (?<up>\w+) (?<clock>\{.*\}) (?<event>.*)"
        (execution,) = read_log('17 a TRUE {"a":1} begin\nnothing\n007 a no {"a":2} end\n', parser)
        assert [each.fields for each in execution.events] == [{"time": 17, "up": True}, {"time": "007", "up": "no"}]
        assert [each.line for each in execution.events] == [1, 3]

    def test_a_field_that_reads_like_a_number_out_of_range_stays_text(self) -> None:
        (execution,) = read_log('7e999 a {"a":1} begin\n', r"(?<commit>\w+) (?<host>\w+) (?<clock>\{.*\}) (?<event>.*)")
        assert execution.events[0].fields == {"commit": "7e999"}

    def test_executions_are_separated_and_lines_counted_across_them(self) -> None:
        text = f"=== one ===\n{LOG}=== two ===\n{LOG}"
        first, second = read_log(text, delimiter="^=== (?<trace>.*) ===$")
        assert [first.label, second.label] == ["one", "two"]
        assert [each.line for each in second.events] == [10, 12, 14]

    def test_an_execution_begins_a_new_line_after_its_delimiter(self) -> None:
        """As in ShiViz, which splits the log: `^` matches there, and a lookbehind does not see the delimiter."""
        text = 'a {"a":1} x\n-- b {"b":1} y\nb {"b":2} z\n--c {"c":1} w'
        parser = r"^ ?(?<host>\w) (?<clock>{.*}) (?<event>.*)$"
        first, second, third = read_log(text, parser, delimiter="--")
        assert [[(each.line, each.event) for each in one.events] for one in (first, second, third)] == [
            [(1, "x")],
            [(2, "y"), (3, "z")],
            [(4, "w")],
        ]
        assert read_log(text, r"(?<!-)(?<host>c) (?<clock>{.*}) (?<event>.*)", "--", only="2")[0].events[0].line == 4

    def test_lines_are_counted_once_for_any_number_of_executions(self, monkeypatch: pytest.MonkeyPatch) -> None:
        counted = []

        class Counting(str):
            def count(self, part: str, *places: int) -> int:  # type: ignore[override]
                counted.append(abs(places[1] - places[0]))
                return super().count(part, *places)

        monkeypatch.setattr(parsing, "_Lines", lambda text: _Lines(Counting(text)))
        text = "".join(f"=== {number} ===\n{LOG}" for number in range(300))
        executions = read_log(text, delimiter="^=== (?<trace>.*) ===$")
        assert [each.events[-1].line for each in executions] == list(range(7, 2101, 7))
        assert sum(counted) < 4 * len(text)

    def test_windows_line_ends_and_a_byte_order_mark_are_ignored(self) -> None:
        (execution,) = read_log("\ufeff" + LOG.replace("\n", "\r\n"))
        assert execution.events == read_log(LOG)[0].events

    def test_clocks_with_escaped_quotes_are_read(self) -> None:
        trace = to_trace(read_log(LOG.replace('"', '\\"'))[0], "log")
        assert len(list(trace.events())) == 3

    def test_a_parser_may_have_an_escaped_bracket_that_looks_like_a_group(self) -> None:
        (execution,) = read_log('<a> {"a":1} x\n(<b> {"b":1} y\n', r"\(?<(?<host>\w+)> (?<clock>{.*}) (?<event>.*)")
        assert [each.host for each in execution.events] == ["a", "b"]

    @pytest.mark.parametrize(
        ("options", "problem"),
        [
            ({"parser": "(?<host>.*) (?<clock>.*)"}, "no group (?<event>...)"),
            ({"parser": "(?<host>.*"}, "the parser is not a regular expression: missing )"),
            ({"parser": "(?<host>a)(?<host>b)(?<clock>c)(?<event>d)"}, "the parser is not a regular expression"),
            ({"parser": "(?<host>x)(?<clock>y)(?<event>z)"}, "finds no event in log"),
            ({"delimiter": "^(ask$"}, "the delimiter is not a regular expression"),
            (
                {"delimiter": "^(?<trace>b) .*$", "parser": "(?<event>ask)\n(?<host>.) (?<clock>.*)"},
                "execution 'b' (line 4)",
            ),
        ],
    )
    def test_an_unusable_expression_is_refused(self, options: dict[str, str], problem: str) -> None:
        with pytest.raises(UsageError) as error:
            read_log(LOG, **options)
        assert problem in str(error.value)

    def test_executions_with_the_same_name_are_refused(self) -> None:
        with pytest.raises(UsageError, match="two executions called 'x', in lines 1 and 8"):
            read_log(f"== x\n{LOG}== x\n{LOG}", delimiter="^== (?<trace>.*)$")

    def test_text_before_the_first_delimiter_is_reported_as_such(self) -> None:
        with pytest.raises(UsageError, match="finds no event in the text before the first delimiter of log"):
            read_log(f"# made by hand\n== x\n{LOG}", delimiter="^== (?<trace>.*)$")

    def test_only_the_requested_execution_needs_events(self) -> None:
        text = f"# made by hand\n== x\n{LOG}== y\nnothing\n"
        (execution,) = read_log(text, delimiter="^== (?<trace>.*)$", only="x")
        assert [each.line for each in execution.events] == [4, 6, 8]
        with pytest.raises(UsageError, match=r"finds no event in the execution 'y' \(line 9\)"):
            read_log(text, delimiter="^== (?<trace>.*)$", only="y")

    def test_a_group_with_the_reserved_name_is_refused(self) -> None:
        with pytest.raises(UsageError, match=r"the parser has a group \(\?<log_line>\.\.\.\)"):
            read_log(LOG, r"(?<log_line>)(?<event>.*)\n(?<host>\S*) (?<clock>{.*})")

    def test_an_empty_log_is_refused(self) -> None:
        with pytest.raises(UsageError, match="log has no events"):
            read_log("\n\n", delimiter=None)


class TestImpossibleClocks:
    def test_possible_clocks_are_accepted(self) -> None:
        assert problems(("a", {"a": 1}), ("b", {"b": 1, "a": 1}), ("a", {"a": 2, "b": 1, "c": 0})) == {}

    def test_lines_may_be_in_any_order(self) -> None:
        assert problems(("a", {"a": 2, "b": 1}), ("b", {"b": 1, "a": 1}), ("a", {"a": 1})) == {}

    @pytest.mark.parametrize(
        ("events", "expected"),
        [
            # Missing components.
            ([("a", {"b": 1}), ("b", {"b": 1})], {1: "its own host is missing"}),
            ([("a", {"a": 0})], {1: "is at 0"}),
            (
                [("a", {"a": 1}), ("b", {"b": 1, "a": 1}), ("c", {"c": 1, "b": 1})],
                {3: "it knows of event 1 of b (line 4), which knew 1 of a; here a is missing"},
            ),
            (
                [("a", {"a": 1}), ("a", {"a": 2}), ("b", {"b": 1, "a": 2}), ("c", {"c": 1, "b": 1, "a": 1})],
                {4: "which knew 2 of a; here a has 1"},
            ),
            # Regressions.
            (
                [("a", {"a": 1}), ("b", {"b": 1, "a": 1}), ("b", {"b": 2})],
                {3: "it goes back: a was at 1 in line 4, and is at 0 here"},
            ),
            # Unknown hosts, and missing events.
            ([("a", {"a": 1, "z": 1})], {1: "it names the host z, which has no events"}),
            ([("a", {"a": 1, "b": 3}), ("b", {"b": 1})], {1: "it knows of event 3 of b, and the last is 1"}),
            # Local ticks, repeated and skipped.
            ([("a", {"a": 1}), ("a", {"a": 1})], {2: "the clock of event 1 comes twice, first in line 2"}),
            ([("a", {"a": 1}), ("a", {"a": 3})], {2: "it is event 3 of its host, and 2 has no line"}),
            ([("a", {"a": 4})], {1: "it is event 4 of its host, and 1 to 3 have no line"}),
            # Received before it was sent.
            (
                [("a", {"a": 1, "b": 1}), ("b", {"b": 1, "a": 1})],
                {1: "received before it was sent", 2: "which knows of it"},
            ),
            # Not clocks.
            ([("a", {"a": -1})], {1: "counts are from 0"}),
            ([("a", {"a": 1.5})], {1: "not a JSON object of whole numbers"}),
            ([("a", {"a": "1"}), ("b", {"b": 1, "a": 1})], {1: "not a JSON object of whole numbers"}),
        ],
    )
    def test_each_impossible_clock_is_named_with_its_line_and_reason(self, events, expected) -> None:
        found = problems(*events)
        assert found.keys() == expected.keys(), found
        assert all(text in found[number] for number, text in expected.items()), found

    def test_all_impossible_clocks_are_named_at_once(self) -> None:
        text = log_of(("a", {"a": 1}), ("a", {"a": 1}), ("b", {"b": 2}), ("c", {"c": 1, "z": 1}))
        with pytest.raises(ClockLogInvalid) as error:
            to_trace(read_log(text)[0], "my.log")
        assert [each.line for each in error.value.impossible] == [4, 6, 8]
        assert str(error.value).count("\n  line ") == 3
        assert "the clocks in my.log are impossible, 3 problems" in str(error.value)

    def test_a_line_is_named_once_for_each_reason_with_the_first_few_hosts(self) -> None:
        """D7: if many hosts each know of all the others, every line is named, in a text no longer than the log."""
        hosts = [f"host{number}" for number in range(60)]
        seen = dict.fromkeys(hosts, 2)
        events = [(host, {host: 1, **dict.fromkeys(hosts[place + 1 :], 2)}) for place, host in enumerate(hosts)]
        events += [(host, {**seen, f"nobody{host}": 1, f"noone{host}": 1}) for host in hosts]
        (execution,) = read_log(text := log_of(*events))
        found = find_impossible(execution)
        fine = 2 * len(hosts)  # the first event of the last host knows of no other host
        assert {each.line for each in found} == {2 * number for number in range(1, len(events) + 1)} - {fine}
        assert len(found) <= 5 * len(events)
        assert sum(len(str(each)) for each in found) < len(text)
        first = [each.problem for each in found if each.line == 2]
        assert first == [
            "it knows of event 2 of host1 (line 124), which knew 1 of nobodyhost1; here nobodyhost1 is missing; "
            "event 2 of host1 (line 124), which knew 1 of noonehost1; here noonehost1 is missing; "
            "event 2 of host2 (line 126), which knew 1 of nobodyhost2; here nobodyhost2 is missing and 115 more",
            "received before it was sent: it knows of event 2 of host1 (line 124), event 2 of host2 (line 126), "
            "event 2 of host3 (line 128) and 56 more, which know of it",
        ]
        assert any("it names the hosts nobodyhost0, noonehost0, which have no events" in each.problem for each in found)

    def test_a_long_name_of_a_host_is_shortened(self) -> None:
        long = "x" * 10_000
        found = problems(("a", {"a": 1, long: 1}), ("b", {"a": 1, "b": 1}), ("c", {"a": 1, "c": 1}))
        assert found.keys() == {1, 2, 3}
        assert all(len(problem) < 500 for problem in found.values())


@given(st.text(alphabet='ab {}":,0123-.e[]\\\n', max_size=80))
def test_any_text_becomes_a_trace_or_is_refused(text: str) -> None:
    with contextlib.suppress(UsageError):
        for execution in read_log(f'x\na {{"a":1}}\n{text}\nb {{"b":1,{text}}}\n'):
            to_trace(execution, "log").check()


class TestTraces:
    def test_a_new_count_of_another_host_becomes_a_message(self) -> None:
        trace = to_trace(read_log(LOG)[0], "log")
        assert list(trace.channels) == ["a->b", "b->a"]
        assert [type(line) for line in trace.lines()] == [Internal, Send, Receive, Send, Receive]
        assert json.loads(bytes(next(trace.lines()).payload)) == {"log_line": 2, "event": "ask"}

    def test_a_count_received_through_another_host_is_no_message(self) -> None:
        text = log_of(("a", {"a": 1}), ("b", {"b": 1, "a": 1}), ("c", {"c": 1, "b": 1, "a": 1}))
        assert set(to_trace(read_log(text)[0], "log").channels) == {"a->b", "b->c"}

    def test_an_event_may_receive_from_several_at_once(self) -> None:
        text = log_of(("a", {"a": 1}), ("b", {"b": 1}), ("c", {"c": 1, "a": 1, "b": 1}))
        trace = to_trace(read_log(text)[0], "log")
        trace.check()
        assert len(trace.event(("c", 1)).further) == 1

    @settings(max_examples=25)
    @given(traces())
    def test_a_trace_that_is_written_and_read_again_has_the_same_clocks(self, trace: Trace) -> None:
        text = "".join(to_log(trace))
        if not text:
            return
        again = to_trace(read_log(text)[0], "log")
        before, after = vector_clocks(trace), vector_clocks(again)
        assert set(again.events()) == set(trace.events())
        assert all(dict(before[event]) == dict(after[event]) for event in trace.events())

    @pytest.mark.parametrize("name", ["timer {x}", 'put {"k":1} now', '{} {"a":1}', "{x}", "a b {x}", "x{ {}", " {x}"])
    def test_an_event_that_reads_like_a_clock_is_read_again_as_an_event(self, name: str) -> None:
        """ShiViz reads a word, a space and text in braces as a host and its clock."""
        trace = Trace(header_of(View(1, ("a",), ())), [Internal("a", position, name) for position in (1, 2, 3)])
        (execution,) = read_log("".join(to_log(trace)))
        assert [(each.line, each.host) for each in execution.events] == [(2, "a"), (4, "a"), (6, "a")]
        again = to_trace(execution, "log")
        assert [describe(again.event(ref)) for ref in again.events()] == [" ".join(name.split())] * 3

    @given(st.lists(st.text(alphabet='ab {}":1', max_size=12), min_size=1, max_size=5))
    def test_events_of_any_name_are_read_again_as_events(self, names: list[str]) -> None:
        lines = [Internal("a", position, name or None) for position, name in enumerate(names, 1)]
        trace = Trace(header_of(View(1, ("a",), ())), lines)
        again = to_trace(read_log("".join(to_log(trace)))[0], "log")
        descriptions = [describe(trace.event(ref)) for ref in trace.events()]
        assert [describe(again.event(ref)) for ref in again.events()] == descriptions

    def test_a_clock_that_is_changed_is_noticed_or_still_possible(self) -> None:
        """If one number of a log is changed, the log is refused, or some run could have produced it."""
        trace = _chatter(6, 40)
        events = [(host, json.loads(clock)) for host, clock in _pairs("".join(to_log(trace)))]
        chosen = random.Random(4)
        refused = 0
        for _ in range(200):
            changed = [(host, dict(clock)) for host, clock in events]
            _, clock = chosen.choice(changed)
            part = chosen.choice(list(clock))
            clock[part] = max(0, clock[part] + chosen.choice([-2, -1, 1, 2]))
            (execution,) = read_log(log_of(*changed))
            if find_impossible(execution):
                refused += 1
                continue
            clocks = vector_clocks(to_trace(execution, "log"))
            for owner, logged in changed:
                counted = {name: count for name, count in logged.items() if count}
                assert dict(clocks[owner, counted[owner]]) == counted
        assert refused > 100

    def test_a_process_whose_name_a_log_cannot_contain_is_refused(self) -> None:
        with pytest.raises(UsageError, match="'my host'"):
            list(to_log(Trace(header_of(View(1, ("my host",), ())), [Internal("my host", 1)])))


def _pairs(text: str) -> list[tuple[str, str]]:
    return [tuple(line.split(" ", 1)) for line in text.splitlines()[1::2]]  # type: ignore[misc]


def _chatter(width: int, length: int) -> Trace:
    """Processes that constantly send to each other."""
    chosen = random.Random(3)
    names = tuple(f"p{number}" for number in range(width))
    channels = tuple(ChannelSpec(f"{s}-{t}", s, t) for s in names for t in names if s != t)
    positions, waiting = dict.fromkeys(names, 0), {channel.id: [] for channel in channels}
    sent = dict.fromkeys(waiting, 0)
    lines = []
    for _ in range(length):
        process = chosen.choice(names)
        positions[process] += 1
        ready = [channel.id for channel in channels if channel.target == process and waiting[channel.id]]
        if ready:
            channel = chosen.choice(ready)
            lines.append(Receive(process, positions[process], channel, waiting[channel].pop(0)))
        else:
            lines.append(Internal(process, positions[process]))
        channel = f"{process}-{chosen.choice([name for name in names if name != process])}"
        sent[channel] += 1
        waiting[channel].append(sent[channel])
        lines.append(Send(process, positions[process], channel, sent[channel]))
    return Trace(header_of(View(1, names, channels)), lines)
