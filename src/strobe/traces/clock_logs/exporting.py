"""Exports a trace as a vector-clock log in ShiViz's default format: the event, then its host and clock."""

import re
from collections.abc import Iterator

import msgspec

from strobe.causality.clocks import vector_clocks
from strobe.causality.trace import Trace
from strobe.errors import UsageError
from strobe.traces.descriptions import describe

_LIKE_A_CLOCK = re.compile(r"\A(\S*) (?=\{.*\})")


def to_log(trace: Trace) -> Iterator[str]:
    """Yield two lines for each event, in a causal order.

    Clocks count from the start of the trace: ShiViz needs every host to begin at 1.
    """
    for process in trace.processes:
        if not process or any(character.isspace() for character in process):
            raise UsageError(f"the process {process!r} cannot be a host of a log: in its lines, a space ends the host")
    clocks = vector_clocks(trace)
    bases = {process: trace.first_count(process) for process in trace.processes}
    for ref in trace.events():
        clock = clocks[ref]
        counted = {process: clock[process] - base for process, base in bases.items() if clock[process] > base}
        text = msgspec.json.encode(counted).decode()
        yield f"{_event_text(describe(trace.event(ref)))}\n{ref.process} {text}\n"


def _event_text(text: str) -> str:
    """Return a text that is not parsed as a host and its clock, as `timer {x}` would be: a clock follows one space.

    After a clock line a parser searches from the end of that line: it finds an empty event, and then this text.
    """
    return _LIKE_A_CLOCK.sub(r"\1  ", text)
