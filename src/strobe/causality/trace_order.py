"""A causal order of all events of a trace; or the cycles that rule it out.

A recorder that sees everything writes its file in such an order, and then the file order is used. Files merged from
several recorders may not be in causal order; their events are sorted topologically.

Both functions need a trace whose positions and send ordinals are right. A receive of a message that was never sent
counts as having no cause.
"""

from array import array
from collections.abc import Iterator

from strobe.causality.trace_tables import RECEIVE, TraceTables


def causal_order(tables: TraceTables) -> "tuple[array[int], dict[int, int]]":
    """Return the first line of every event in a causal order, and the lines that block it.

    The latter is, for each process with events on or behind a cycle, the line of the first event that receives a
    message not sent before.
    """
    if _file_order_is_causal(tables):
        first_lines = (table.lines[start] for table in tables.processes for start in table.starts)
        return array("q", sorted(first_lines)), {}
    return _sort_topologically(tables)


def cause(tables: TraceTables, line: int) -> int | None:
    """Return the line that sent what `line` received, if it is a receive and the send is in the trace."""
    if tables.kind[line] != RECEIVE:
        return None
    return tables.channels[tables.subject[line]].send_of(tables.ordinal[line])


def receives(tables: TraceTables, first_line: int) -> tuple[int, ...]:
    """Return the lines of an event that may have a cause: its first, and any further receives."""
    if not tables.further_receives:
        return (first_line,)
    return (first_line, *tables.further_receives.get(first_line, ()))


def cycles(tables: TraceTables, blocked: dict[int, int]) -> Iterator[list[int]]:
    """Yield every cycle that keeps the `blocked` events out of the order, as one receiving line per event."""
    seen: set[int] = set()
    for process in blocked:
        path: list[int] = []
        while process not in seen:
            seen.add(process)
            path.append(process)
            process = _waits_for(tables, blocked[process])
        if process in path:
            yield [blocked[member] for member in path[path.index(process) :]]


def _waits_for(tables: TraceTables, line: int) -> int:
    """Return the process whose message a blocked event received; it is blocked too, at that send or before it."""
    sending = cause(tables, line)
    assert sending is not None, "an event without a cause is never blocked"
    return tables.process[sending]


def _file_order_is_causal(tables: TraceTables) -> bool:
    """Whether every receive is after its send in the file. Then ordering events by their first lines is causal.

    The sending event begins no later than the line of the send, and a receive is the first line of its event. That does
    not hold if an event has several receives.
    """
    if tables.further_receives:
        return False
    ordinal = tables.ordinal
    for table in tables.channels:
        sends, base, count = table.sends, table.base, table.sent_count
        if any(base < ordinal[line] <= count and sends[ordinal[line] - base - 1] > line for line in table.receives):
            return False
    return True


def _sort_topologically(tables: TraceTables) -> "tuple[array[int], dict[int, int]]":
    """Run each process until it needs a message that is not sent yet; the sender then resumes it."""
    order = array("q")
    done = [table.base for table in tables.processes]
    waiting: list[list[tuple[int, int]]] = [[] for _ in tables.processes]  # by sender: (its event, the waiting process)
    blocked: dict[int, int] = {}
    ready = list(reversed(range(len(tables.processes))))
    while ready:
        process = ready.pop()
        blocked.pop(process, None)
        for first_line in _events_from(tables, process, done[process] - tables.processes[process].base):
            early = next((line for line in receives(tables, first_line) if not _is_sent(tables, line, done)), None)
            if early is not None:
                sending = cause(tables, early)
                assert sending is not None, "what has no cause waits for none"
                waiting[tables.process[sending]].append((tables.position[sending], process))
                blocked[process] = early
                break
            order.append(first_line)
            done[process] += 1
        ready += [waiter for position, waiter in waiting[process] if position <= done[process]]
        waiting[process] = [(position, waiter) for position, waiter in waiting[process] if position > done[process]]
    return order, blocked


def _is_sent(tables: TraceTables, line: int, done: list[int]) -> bool:
    """Whether the message that `line` receives, if any, was sent in the events that are `done`."""
    sending = cause(tables, line)
    return sending is None or tables.position[sending] <= done[tables.process[sending]]


def _events_from(tables: TraceTables, process: int, count: int) -> Iterator[int]:
    """Yield the first lines of the events of `process` after its first `count`."""
    table = tables.processes[process]
    for place in range(count, len(table.starts)):
        yield table.lines[table.starts[place]]
