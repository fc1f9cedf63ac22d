"""Random traces whose processes report variables, random conditions on them, and what possibly and definitely mean.

The definitions are applied literally: all consistent cuts are found by trying all, and all paths through them are
walked.
"""

from itertools import product

import msgspec
from hypothesis import strategies as st
from tests.causality.brute_force import consistent_cuts_below
from tests.causality.strategies import Run, runs

from strobe.causality.trace import Trace
from strobe.causality.trace_lines import Receive, Record, Send, header_of
from strobe.expressions import evaluate, parse
from strobe.expressions.values import Value
from strobe.protocol.values.view import ChannelSpec, View

LITERALS = ["0", "1", "2", "true", "null", '"up"']


@st.composite
def wide_traces(draw: st.DrawFn, events_max: int = 9) -> Trace:
    """A trace of five processes with channels between every two of them, in both directions."""
    names = tuple("abcde")
    channels = tuple(ChannelSpec(f"{s}{t}", s, t, "unordered") for s in names for t in names if s != t)
    run = Run.begin(header_of(View(1, names, channels)))
    for _ in range(draw(st.integers(4, events_max))):
        process = draw(st.sampled_from(names))
        receivable = run.receivable(process)
        received = draw(st.sampled_from(receivable)) if receivable else None
        targets = draw(st.lists(st.sampled_from([name for name in names if name != process]), max_size=2, unique=True))
        run.event(process, received, [f"{process}{target}" for target in targets])
    return Trace(run.header, run.lines)


VALUES_OF_ANY_KIND = (0, 1, 2, True, False, None, "up", 1.0)


@st.composite
def variable_traces(draw: st.DrawFn, events_max: int = 7, pool: tuple[Value, ...] = VALUES_OF_ANY_KIND) -> Trace:
    """A trace in which events and records report values of x and y. Before its first value a variable is null."""
    run = draw(runs(events_max))
    values = st.sampled_from(pool)
    lines = []
    for line in run.lines:
        if not isinstance(line, Send) and draw(st.booleans()):
            fields = draw(st.dictionaries(st.sampled_from("xy"), values, max_size=2))
            line = msgspec.structs.replace(line, payload=msgspec.Raw(msgspec.json.encode(fields)))
        lines.append(line)
    return Trace(run.header, lines)


@st.composite
def local_conditions(draw: st.DrawFn, trace: Trace) -> str:
    """A condition on one process."""
    process = draw(st.sampled_from(trace.processes))
    names = [f"{process}.{field}" for field in variable_fields(trace, process)] + [f"events({process})"]
    left, operator = draw(st.sampled_from(names)), draw(st.sampled_from(["==", "!=", "<", ">="]))
    text = f"{left} {operator} {draw(st.sampled_from(LITERALS))}"
    return f"not ({text})" if draw(st.booleans()) else text


@st.composite
def conjunctions(draw: st.DrawFn, trace: Trace) -> str:
    return " and ".join(draw(st.lists(local_conditions(trace), min_size=1, max_size=4)))


@st.composite
def conditions(draw: st.DrawFn, trace: Trace) -> str:
    """Any condition: on variables, events and channels of several processes."""
    leaves = [f"{process}.{field}" for process in trace.processes for field in variable_fields(trace, process)]
    leaves += [f"events({process})" for process in trace.processes]
    leaves += [f'in_flight("{channel}")' for channel in trace.channels]
    leaves += ["in_flight()", "sent()", "received()"]
    values = st.sampled_from(leaves + LITERALS)

    def comparison() -> str:
        left, right = draw(values), draw(values)
        if draw(st.booleans()):
            left = f"({left} {draw(st.sampled_from(['+', '-', '*', '/', '%']))} {draw(values)})"
        return f"({left} {draw(st.sampled_from(['==', '!=', '<', '<=', '>', '>=']))} {right})"

    text = comparison()
    for _ in range(draw(st.integers(0, 2))):
        text = f"({text} {draw(st.sampled_from(['and', 'or']))} {comparison()})"
        text = f"not {text}" if draw(st.booleans()) else text
    return text


def variable_fields(trace: Trace, process: str) -> list[str]:
    payloads = [msgspec.json.decode(line.payload) for line in trace.lines() if line.process == process and line.payload]
    return sorted({field for fields in payloads for field in fields})


class CutScope:
    """Resolves the names of an expression at one cut, by looking through all lines."""

    def __init__(self, trace: Trace, cut: dict[str, int]) -> None:
        self.trace, self.cut = trace, cut

    def variable(self, process: str, path: tuple[str, ...]) -> Value:
        found = None
        reports = [
            (line.position, isinstance(line, Record), place, msgspec.json.decode(line.payload))
            for place, line in enumerate(self.trace.lines())
            if line.process == process and line.payload and not isinstance(line, Send)
        ]
        for position, _, _, fields in sorted(reports, key=lambda entry: entry[:3]):
            if position <= self.cut[process] and path[0] in fields:
                found = fields[path[0]]
        return found

    def count(self, kind: str, name: str | None) -> int:
        if kind == "events":
            return self.cut[name] if name is not None else sum(self.cut.values())
        inside = [line for line in self.trace.lines() if line.position <= self.cut[line.process]]
        sent = sum(isinstance(line, Send) and name in (None, line.channel) for line in inside)
        received = sum(isinstance(line, Receive) and name in (None, line.channel) for line in inside)
        return {"sent": sent, "received": received, "in_flight": sent - received}[kind]


def all_cuts(trace: Trace) -> list[dict[str, int]]:
    return consistent_cuts_below(trace, {process: trace.event_count(process) for process in trace.processes})


def cuts_where(trace: Trace, expression: str) -> list[dict[str, int]]:
    node = parse(expression)
    return [cut for cut in all_cuts(trace) if evaluate(node, CutScope(trace, cut)) is True]


def is_definite(trace: Trace, expression: str) -> bool:
    """Return whether every path from the first to the last cut passes one at which the condition holds."""
    good = {tuple(cut.values()) for cut in cuts_where(trace, expression)}
    avoiding = {tuple(cut.values()) for cut in all_cuts(trace)} - good
    top = tuple(trace.event_count(process) for process in trace.processes)
    reached, fresh = set(), {tuple(0 for _ in top)} & avoiding
    while fresh:
        reached |= fresh
        steps = product(fresh, range(len(top)))
        fresh = {(*cut[:p], cut[p] + 1, *cut[p + 1 :]) for cut, p in steps} & avoiding - reached
    return top not in reached


def cuts_along(trace: Trace, path: tuple[tuple[str, int], ...]) -> list[dict[str, int]]:
    """Return the cuts on a path, including the first and the last."""
    cut = dict.fromkeys(trace.processes, 0)
    passed = [dict(cut)]
    for process, position in path:
        assert position == cut[process] + 1
        cut[process] = position
        passed.append(dict(cut))
    return passed
