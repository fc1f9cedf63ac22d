"""Looks up the names of an expression in a trace: the variables of processes, and the counts of channels.

A variable of a process is a field of the JSON objects in the payloads of its `internal`, `receive` and `record` lines.
It keeps its value until another line has a new one, and is null before the first. If the states themselves are known,
for example from a replay, they are used instead.

A number that no float can hold, or a value nested more deeply than Python can read, is null.
"""

import json
import math
from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache

import msgspec

from strobe.causality.lattice.run import TraceRun
from strobe.causality.trace_tables import RECORD, ChannelLines
from strobe.causality.trace_tables import SEND as SEND_LINE
from strobe.expressions.evaluation import leaves
from strobe.expressions.nodes import EVENTS, RECEIVED, SENT, Count, Expression, ExpressionError, Variable, unknown_name
from strobe.expressions.values import Value

KnownStates = Mapping[str, Sequence[Value]]
"""For each process its state after 0, 1, 2, ... of its events in the trace."""


class Variables:
    """The names of one run. `text` is the expression, for errors that point into it."""

    def __init__(self, run: TraceRun, text: str, states: KnownStates | None = None) -> None:
        self._run = run
        self._text = text
        self._states = states
        self.values = lru_cache(maxsize=None)(self._values)
        self.share = lru_cache(maxsize=None)(self._share)
        self._states_of = lru_cache(maxsize=None)(self._recorded_states)
        self._fields = lru_cache(maxsize=None)(self._fields_of)

    def check(self, node: Expression) -> None:
        """Raise ExpressionError if `node` names something that the trace does not have."""
        for leaf in leaves(node):
            if isinstance(leaf, Variable):
                self._check_variable(leaf)
            elif leaf.name is not None:
                known = self._run.processes if leaf.kind == EVENTS else tuple(self._run.trace.channels)
                what = "process" if leaf.kind == EVENTS else "channel"
                if leaf.name not in known:
                    raise unknown_name(self._text, leaf, f"the trace has no {what} {leaf.name!r}", leaf.name, known)

    def _check_variable(self, variable: Variable) -> None:
        process = variable.process
        if process not in self._run.processes:
            problem = f"the trace has no process {process!r}"
            raise unknown_name(self._text, variable, problem, process, self._run.processes)
        fields = self._fields(process)
        if variable.path[0] not in fields:
            if not fields:
                problem = f"the trace has no variables of {process}; replay a full trace to have them (--system)"
                if self._states is not None:
                    problem = f"the states of {process} have no fields; let capture() return something with fields"
                raise ExpressionError(self._text, variable.column, problem)
            problem = f"the trace has no {variable.path[0]!r} of {process}"
            if self._states is None:
                problem += " (for the fields of its state, replay a full trace: --system)"
            raise unknown_name(self._text, variable, problem, variable.path[0], tuple(fields))

    def _fields_of(self, process: str) -> dict[str, None]:
        """Return the names of the variables of `process`, in the order of their first appearance."""
        return dict.fromkeys(name for _, state in self._states_of(process) for name in state)

    def processes_of(self, leaf: Variable | Count) -> set[int]:
        """Return the processes whose states decide the value of `leaf`."""
        number = self._run.processes.index
        if isinstance(leaf, Variable):
            return {number(leaf.process)}
        if leaf.kind == EVENTS:
            return {number(leaf.name)} if leaf.name is not None else set(range(len(self._run.processes)))
        ends: set[int] = set()
        for table in self._channels(leaf.name):
            ends |= {table.source} if leaf.kind != RECEIVED else set()
            ends |= {table.target} if leaf.kind != SENT else set()
        return ends

    def _values(self, process: str, path: tuple[str, ...]) -> list[Value]:
        """Return the value of a variable in each state of its process."""
        count = self._run.lengths[self._run.processes.index(process)] + 1
        values: list[Value] = []
        latest: Value = None
        for state, recorded in self._states_of(process):
            values += [latest] * (state - len(values))
            if path[0] in recorded:
                latest = _follow(recorded, path)
        return values + [latest] * (count - len(values))

    def _recorded_states(self, process: str) -> list[tuple[int, Mapping[str, Value]]]:
        """Return what the trace records of the state of `process`, each with the first state it applies to."""
        recorded = self._payloads(process) if self._states is None else enumerate(self._states[process])
        return [(state, value) for state, value in recorded if isinstance(value, dict)]

    def _payloads(self, process: str) -> Iterator[tuple[int, Value]]:
        tables, number = self._run.trace.tables, self._run.processes.index(process)
        base = self._run.bases[number]
        lines = [
            (tables.position[index] - base, tables.kind[index] == RECORD, index)
            for index in tables.payloads
            if tables.process[index] == number and tables.kind[index] != SEND_LINE
        ]
        for state, _, index in sorted(lines):
            yield max(0, state), _decoded(tables.payloads[index])

    def _share(self, count: Count, process: int) -> list[int]:
        """Return what each state of `process` contributes to a count."""
        length, base = self._run.lengths[process], self._run.bases[process]
        if count.kind == EVENTS:
            return list(range(base, base + length + 1))
        totals = [0] * (length + 1)
        for table in self._channels(count.name):
            if table.source == process and count.kind != RECEIVED:
                self._add(totals, table.base, table.sends, base, 1)
            if table.target == process and count.kind != SENT:
                self._add(totals, table.received_base, table.receives, base, 1 if count.kind == RECEIVED else -1)
        return totals

    def _add(self, totals: list[int], before: int, lines: Sequence[int], base: int, sign: int) -> None:
        """Add to each state how many of `lines` belong to it or to an earlier state."""
        position = self._run.trace.tables.position
        for state in range(len(totals)):
            totals[state] += sign * (before + bisect_right(lines, base + state, key=position.__getitem__))

    def _channels(self, name: str | None) -> list[ChannelLines]:
        tables = self._run.trace.tables
        known = tables.channels[: len(self._run.trace.channels)]
        return known if name is None else [known[tables.channel_names[name]]]


def _follow(value: Value, path: tuple[str, ...]) -> Value:
    for name in path:
        value = value.get(name) if isinstance(value, dict) else None
    return value


def _decoded(payload: bytes) -> Value:
    """Decode a JSON payload."""
    try:
        return msgspec.json.decode(payload)
    except RecursionError:
        return None
    except msgspec.MsgspecError:
        return json.loads(payload, parse_float=_finite, parse_int=_finite)


def _finite(digits: str) -> float | None:
    number = float(digits)
    return number if math.isfinite(number) else None
