"""Finds the events in a log by a regular expression, as ShiViz does, and keeps the line of each clock.

The parser is written for JavaScript, with the flags g and m. It must have `(?<host>...)`, `(?<clock>...)` and
`(?<event>...)`; its other groups become fields of the event. A delimiter splits the log into executions; its group
`trace`, if it has one, names the execution that follows. `Event` is an event with its decoded clock.
"""

import re
from collections.abc import Callable, Iterator

import msgspec

from strobe.errors import UsageError
from strobe.traces.clock_logs.javascript import Expression
from strobe.traces.descriptions import LINE_FIELD

DEFAULT_PARSER = r"(?<event>.*)\n(?<host>\S*) (?<clock>{.*})"

Clock = dict[str, int]

_REQUIRED = ("host", "clock", "event")
_NUMBER = re.compile(r"-?(0|[1-9]\d{0,17})(\.\d+)?([eE][+-]?\d{1,3})?\Z")


class ClockEvent(msgspec.Struct, frozen=True):
    """One event of the log. `clock` is the undecoded text; `line` is its line number."""

    line: int
    host: str
    clock: str
    event: str
    fields: dict[str, object]


class Event(msgspec.Struct, frozen=True):
    """An event of a log with its decoded clock. `tick` is its number at its host, `total` the events it knows of."""

    logged: ClockEvent
    clock: Clock
    tick: int
    total: int


ByHost = dict[str, dict[int, Event]]
"""The events of each host by their ticks."""


def counted_alone(event: Event, before: Event | None) -> Clock:
    """Return the clock of an event that receives nothing new, if `before` is the previous event at its host.

    Most events are like that, and comparing two clocks is much faster than iterating over them.
    """
    own = {event.logged.host: event.tick}
    return own if before is None else {**before.clock, **own}


class Execution(msgspec.Struct, frozen=True):
    """The events of one execution, in the order of the log; `label` names it, and is empty if it has no name."""

    label: str
    line: int
    events: tuple[ClockEvent, ...]


def read_log(
    text: str,
    parser: str = DEFAULT_PARSER,
    delimiter: str | None = None,
    name: str = "log",
    reached: Callable[[int], None] = lambda _line: None,
    only: str | None = None,
) -> list[Execution]:
    """Return the executions in `text`, or only the one with the label `only`.

    `reached` is called regularly with the line searched so far.
    """
    expression = _parser(parser)
    text = text.removeprefix("\ufeff").replace("\r\n", "\n")
    lines = _Lines(text)
    pieces = _pieces(text, delimiter, name)
    if not pieces:
        raise UsageError(f"{name} has no events: it is empty")
    if only is not None:
        pieces = _chosen(pieces, only)
    executions = []
    for label, begin, end in pieces:
        line = lines.at(begin)
        events = tuple(_events(text, begin, end, expression, lines, reached))
        if not events:
            which = _called(label, begin, end, line, len(text), name)
            raise UsageError(f"the parser finds no event in {which}; the parser is: {parser}")
        executions.append(Execution(label, line, events))
    return executions


def _parser(text: str) -> Expression:
    expression = Expression(text, "parser")
    missing = [group for group in _REQUIRED if group not in expression.groups]
    if missing:
        raise UsageError(
            f"the parser has no group {', '.join(f'(?<{group}>...)' for group in missing)}; "
            f"one that has all is: {DEFAULT_PARSER}"
        )
    if LINE_FIELD in expression.groups:
        raise UsageError(
            f"the parser has a group (?<{LINE_FIELD}>...): in a trace, this name holds the line of the clock; "
            "give the group another name"
        )
    return expression


def _pieces(text: str, delimiter: str | None, name: str) -> list[tuple[str, int, int]]:
    """Return the label of each execution, and where it begins and ends; empty executions are left out."""
    pieces = [("", 0, len(text))]
    if delimiter is not None:
        expression = Expression(delimiter, "delimiter")
        for found in expression.find(text):
            label, begin, _ = pieces.pop()
            following = (found["trace"] or "") if "trace" in expression.groups else str(len(pieces) + 1)
            pieces += [(label, begin, found.start()), (following, found.end(), len(text))]
    pieces = [(label, begin, end) for label, begin, end in pieces if text[begin:end].strip()]
    known: dict[str, int] = {}
    lines = _Lines(text)
    for label, begin, _ in pieces:
        line = lines.at(begin)
        if label in known:
            raise UsageError(f"{name} has two executions called {label!r}, in lines {known[label]} and {line}")
        known[label] = line
    return pieces


def _chosen(pieces: list[tuple[str, int, int]], only: str) -> list[tuple[str, int, int]]:
    chosen = [piece for piece in pieces if piece[0] == only]
    if not chosen:
        raise UsageError(f"there is no execution {only!r}; there are: {', '.join(repr(label) for label, *_ in pieces)}")
    return chosen


def _called(label: str, begin: int, end: int, line: int, length: int, name: str) -> str:
    """Return the name of a piece of a log, for messages."""
    if begin > 0:
        return f"the execution {label!r} (line {line})"
    if end == length:
        return name
    return f"the text before the first delimiter of {name} (remove it, or choose an execution with --execution)"


class _Lines:
    """Converts offsets to line numbers, counting on from the last query: offsets mostly come in order."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._place = 0
        self._line = 1

    def at(self, place: int) -> int:
        """Return the line number of an offset."""
        if place < self._place:
            self._line -= self._text.count("\n", place, self._place)
        else:
            self._line += self._text.count("\n", self._place, place)
        self._place = place
        return self._line


def _events(
    text: str, begin: int, end: int, expression: Expression, lines: _Lines, reached: Callable[[int], None]
) -> Iterator[ClockEvent]:
    others = [group for group in expression.groups if group not in _REQUIRED]
    # Each piece is searched by itself, so that `^` matches at its beginning even in the middle of a line, as in ShiViz.
    for found in expression.find(text[begin:end], lambda place: reached(lines.at(begin + place))):
        line = lines.at(begin + found.start("clock" if found["clock"] is not None else 0))
        reached(line)
        fields = {group: _value(found[group]) for group in others if found[group] is not None}
        yield ClockEvent(line, found["host"] or "", found["clock"] or "", found["event"] or "", fields)


def _value(text: str) -> object:
    """Return the value of a field: a number, true or false if it is one, else its text."""
    if text.lower() in ("true", "false"):
        return text.lower() == "true"
    try:
        return msgspec.json.decode(text) if _NUMBER.match(text) else text
    except msgspec.DecodeError:  # out of range, such as 7e999, which may be a name and not a number
        return text
