"""Writes a trace as a log of vector clocks, as ShiViz reads it by default: the event, then its host and clock."""

import re
from collections.abc import Iterator

import msgspec

from strobe.causality.clocks import vector_clocks
from strobe.causality.trace import Trace
from strobe.errors import UsageError
from strobe.traces.descriptions import describe

_LIKE_A_CLOCK = re.compile(r"\A(\S*) (?=\{.*\})")


def to_log(trace: Trace) -> Iterator[str]:
    """Yield two lines for each event, in an order in which nothing comes before its cause.

    Clocks count from where the trace begins: ShiViz wants every host to begin at 1.
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
    """Return a text that is not read as a host and its clock, as `timer {x}` would be: a clock has one space before it.

    Behind a clock line a parser looks for the next event from the end of that line: an empty event, and then this text.
    """
    return _LIKE_A_CLOCK.sub(r"\1  ", text)
