"""Lists the snapshots of a store: complete ones, and the outcome of the others."""

from itertools import islice

import msgspec

from strobe.cli.shell.output import Column, count, print_line, print_table, size_text
from strobe.cli.snapshots.show import time_text
from strobe.protocol.values.ids import SnapshotId
from strobe.protocol.values.log_entries import Begin
from strobe.storage import Committed, LogState, Store
from strobe.storage.store.snapshot_names import Printed, printed_names


class ListedSnapshot(msgspec.Struct, frozen=True):
    """A snapshot as `list` shows it. An incomplete one has no sizes. `pause_us` is the longest pause of a process.

    `written_bytes` leaves out what the snapshot shares with its parent; None if that is not known.
    """

    id: str
    status: str
    log_position: int
    protocol: str
    initiators: tuple[str, ...]
    view: int
    started_us: int
    completed_us: int | None = None
    state_bytes: int | None = None
    written_bytes: int | None = None
    in_flight_messages: int | None = None
    in_flight_bytes: int | None = None
    reason: str | None = None
    epoch: int = 0
    pinned: bool = False
    pause_us: int | None = None
    durations_us: dict[str, int] = {}
    parent: str | None = None


def list_complete(store: Store, last: int | None = None) -> list[ListedSnapshot]:
    """Return the complete snapshots, oldest first; only the `last` ones, if given.

    No manifest is read if a checkpoint of the log has the listed values.
    """
    state = store.state()
    newest_first = islice(reversed(state.committed.items()), last)
    return [_complete(name, complete, name in state.pinned) for name, complete in newest_first][::-1]


def list_others(store: Store, last: int | None = None) -> list[ListedSnapshot]:
    """Return the snapshots that were begun and are not complete, with their outcome, oldest first.

    Ended snapshots whose begin was removed from the log are left out.
    """
    state = store.state()
    begins = {opened.begin.snapshot: (opened.position, opened.begin) for opened in state.open.values()}
    for position in reversed(store.positions()):
        # A file beyond the end is not an entry.
        entry = store.read_entry(position) if position < state.next_position else None
        if isinstance(entry, Begin) and (entry.snapshot in state.aborted or entry.snapshot in state.removed):
            begins[entry.snapshot] = position, entry  # the first begin counts
            if len(begins) - len(state.open) == last:
                break
    found = sorted(begins.values(), key=lambda one: one[0])
    return [_other(state, *one) for one in found[-last if last else 0 :]]


def _other(state: LogState, position: int, begin: Begin) -> ListedSnapshot:
    snapshot = begin.snapshot
    status, reason = "open", None
    if snapshot in state.aborted:
        status, reason = "aborted", state.aborted[snapshot]
    elif snapshot in state.removed:
        status, reason = "removed", state.removed[snapshot]
    return ListedSnapshot(
        snapshot,
        status,
        position,
        begin.protocol,
        begin.initiators,
        begin.view,
        begin.at_us,
        reason=reason,
        epoch=SnapshotId.parse(snapshot).epoch,
        pinned=snapshot in state.pinned,
    )


def print_listing(complete: list[ListedSnapshot], others: list[ListedSnapshot], state: LogState) -> None:
    """Print a table of each kind."""
    name = printed_names(state, [one.id for one in others])
    _print_complete(complete, len(state.committed), name)
    if others:
        print_line()
        _print_others(others, name)


def _complete(name: str, complete: Committed, pinned: bool) -> ListedSnapshot:
    summary = complete.summary
    return ListedSnapshot(
        name,
        "complete",
        complete.position,
        summary.protocol,
        summary.initiators,
        summary.view,
        complete.started_us,
        summary.completed_us,
        summary.state_bytes,
        summary.written_bytes,
        summary.in_flight_messages,
        summary.in_flight_bytes,
        epoch=SnapshotId.parse(name).epoch,
        pinned=pinned,
        pause_us=summary.pause_us,
        durations_us=summary.durations_us,
        parent=summary.parent,
    )


def _print_complete(listed: list[ListedSnapshot], total: int, name: Printed) -> None:
    if not listed:
        print_line("no complete snapshot")
        return
    titles = ["view", "started", "ms", "state", "written", "in flight", "pause ms"]
    rows = [_complete_row(one, name) for one in listed]
    if not any(one.pause_us for one in listed):  # a simulation has none
        titles, rows = titles[:-1], [row[:-1] for row in rows]
    print_table([Column("snapshot", name=True), *(Column(title, number=True) for title in titles)], rows)
    print_line()
    protocols = ", ".join(sorted({one.protocol for one in listed}))
    shown = (
        count(len(listed), "snapshot") if total == len(listed) else f"the last {len(listed):,} of {total:,} snapshots"
    )
    print_line(f"{shown} by {protocols}; `in flight` as messages / bytes")
    for one in listed:
        if one.pinned:
            print_line(f"pinned: {name(one.id)}")


def _complete_row(one: ListedSnapshot, name: Printed) -> list[str]:
    assert one.completed_us is not None
    assert one.in_flight_bytes is not None
    return [
        name(one.id),
        str(one.view),
        time_text(one.started_us),
        f"{(one.completed_us - one.started_us) / 1000:,.1f}",
        size_text(one.state_bytes or 0),
        size_text(one.written_bytes) if one.written_bytes is not None else "",
        f"{one.in_flight_messages:,} / {size_text(one.in_flight_bytes)}",
        f"{(one.pause_us or 0) / 1000:,.2f}",
    ]


def _print_others(listed: list[ListedSnapshot], name: Printed) -> None:
    rows = [
        [
            name(one.id),
            one.status,
            ",".join(one.initiators),
            str(one.log_position),
            str(one.view),
            time_text(one.started_us),
            one.reason or "",
        ]
        for one in listed
    ]
    titles = ("log", "view", "started")
    columns = [
        Column("snapshot", name=True),
        Column("status", name=True),
        Column("from"),
        *(Column(title, number=True) for title in titles),
        Column("reason"),
    ]
    print_table(columns, rows)
