"""`strobe snapshot diff`: shows what changed between two snapshots."""

from collections.abc import Iterator
from typing import Annotated

import typer

from strobe.cli.shell.commands import SNAPSHOT_NAME, JsonOption, StoreOption
from strobe.cli.shell.output import Cell, Column, count, print_json, print_line, print_table, size_text
from strobe.cli.snapshots.show import time_text, value_text
from strobe.outside import shown_position
from strobe.storage import Store
from strobe.storage.inspection.diff import (
    Change,
    ChannelDifference,
    Difference,
    KeyedChange,
    ProcessDifference,
    compare,
)
from strobe.storage.inspection.value_diff import ADDED, REMOVED, FieldChange

FIELDS_MAX = 8
_VALUE_MAX = 60

_IDS = SNAPSHOT_NAME[0].lower() + SNAPSHOT_NAME[1:]


def diff(
    a: Annotated[str, typer.Argument(metavar="A", help=f"The first snapshot: {_IDS}")],
    b: Annotated[str, typer.Argument(metavar="B", help=f"The second snapshot: {_IDS}")],
    store: StoreOption,
    json: JsonOption = False,
) -> int:
    """Show what changed from snapshot A to snapshot B: processes and their states, channels, view and epoch.

    \b
    Example:
      strobe snapshot diff 1.1 latest --store ./strobe-demo
    """
    opened = Store.open(store)
    difference = compare(opened, a, b)
    if json:
        print_json({"store": opened.url, "difference": difference})
    else:
        _print_difference(difference)
    return 0


def _print_difference(found: Difference) -> None:
    print_line(f"from       {found.before}, {time_text(found.started_us.before)}")
    print_line(f"to         {found.after}, {time_text(found.started_us.after)}")
    print_line(
        f"apart      {found.started_us.by / 1_000_000:+,.3f} s; epoch {_step(found.epoch)}, view {_step(found.view)}"
    )
    print_line(f"took       {found.duration_us.before / 1000:,.1f} ms → {found.duration_us.after / 1000:,.1f} ms")
    for title, names in (
        ("joined", found.processes_added),
        ("left", found.processes_removed),
        ("opened", found.channels_added),
        ("closed", found.channels_removed),
    ):
        if names:
            print_line(f"{title:<10} {', '.join(names)}")
    print_line()
    rows = [[one.process, f"{one.position.by:+,}", *_state_cells(one)] for one in found.processes]
    columns = [
        Column("process", name=True),
        Column("events", number=True),
        Column("bytes", number=True),
        Column("state"),
    ]
    print_table(columns, rows)
    _print_channels(found.channels)


def _print_channels(channels: list[ChannelDifference]) -> None:
    moved = [one for one in channels if one.sent.by or one.received.by or one.in_flight.by]
    print_line()
    if moved:
        numbers = ("sent", "received", "in flight")
        columns = [Column("channel", name=True), *(Column(title, number=True) for title in numbers)]
        rows = [[one.channel, f"{one.sent.by:+,}", f"{one.received.by:+,}", _step(one.in_flight)] for one in moved]
        print_table(columns, rows)
        print_line()
    still = len(channels) - len(moved)
    print_line(f"{count(len(moved), 'channel')} moved, {still:,} did not")


def _state_cells(one: ProcessDifference) -> list[Cell]:
    """Return the change of size, and the changed fields."""
    size = f"{'-' if one.state_bytes.by < 0 else '+'}{size_text(abs(one.state_bytes.by))}" if one.state_bytes.by else ""
    return [size, [*_state_lines(one), *_position_lines(one)]]


def _state_lines(one: ProcessDifference) -> Iterator[str]:
    if one.same_state:
        yield "the same"
    elif one.keyed is not None:
        yield _keyed_text(one.keyed)
        yield from map(_field_text, one.keyed.examples[:FIELDS_MAX])
    elif one.fields:
        yield from map(_field_text, one.fields[:FIELDS_MAX])
        if len(one.fields) > FIELDS_MAX:
            yield f"and {count(len(one.fields) - FIELDS_MAX, 'more field')}; --json shows all"
    else:
        yield "other bytes"


def _position_lines(one: ProcessDifference) -> Iterator[str]:
    yield from (f"source {_field_text(_shown(field))}" for field in one.sources)
    yield from (f"sink {_field_text(field)}" for field in one.sinks)


def _shown(field: FieldChange) -> FieldChange:
    """Return a change of a source's position in display form."""
    before, after = (value if value is None else shown_position(value) for value in (field.before, field.after))
    return FieldChange(field.path, field.change, before, after)


def _keyed_text(keyed: KeyedChange) -> str:
    return f"keys: {keyed.added:,} added, {keyed.changed:,} changed, {keyed.deleted:,} deleted"


def _field_text(field: FieldChange) -> str:
    before, after = _short(field.before), _short(field.after)
    name = field.path or "value"
    if field.change == ADDED:
        return f"{name} + {after}"
    if field.change == REMOVED:
        return f"{name} - {before}"
    by = f" ({field.after - field.before:+,})" if _is_number(field.before) and _is_number(field.after) else ""
    return f"{name} {before} → {after}{by}"


def _is_number(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _short(value: object) -> str:
    text = value_text(value)
    return text if len(text) <= _VALUE_MAX else f"{text[:_VALUE_MAX]}…"


def _step(change: Change) -> str:
    return f"{change.before:,} → {change.after:,}" if change.by else f"{change.after:,}"
