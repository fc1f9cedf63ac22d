"""The snapshots of a store as a list: the complete ones, and what became of the others."""

import msgspec

from strobe.cli.freeze_frame import time_text
from strobe.cli.output import Column, count, print_table, say, size_text
from strobe.protocol.ids import SnapshotId
from strobe.protocol.log import Begin, Manifest
from strobe.storage import Store
from strobe.storage.channel_frames import RECORD


class Listed(msgspec.Struct, frozen=True):
    """A snapshot as `list` shows it. One that is not complete has no sizes. `pause_us` is the longest of a process."""

    id: str
    status: str
    log_position: int
    protocol: str
    initiators: tuple[str, ...]
    view: int
    started_us: int
    completed_us: int | None = None
    state_bytes: int | None = None
    in_flight_messages: int | None = None
    in_flight_bytes: int | None = None
    reason: str | None = None
    epoch: int = 0
    pinned: bool = False
    pause_us: int | None = None
    durations_us: dict[str, int] = {}
    parent: str | None = None


def list_complete(store: Store) -> list[Listed]:
    """Return those that are complete, oldest first."""
    pinned = store.state().pinned
    return [_complete(position, name, manifest, name in pinned) for position, name, manifest in store.list()]


def list_others(store: Store) -> list[Listed]:
    """Return those that were begun and are not complete, with what became of them."""
    state = store.state()
    listed: dict[str, Listed] = {}
    for position, entry in store.read_log():
        if not isinstance(entry, Begin) or entry.snapshot in state.committed or entry.snapshot in listed:
            continue
        status, reason = "open", None
        if entry.snapshot in state.aborted:
            status, reason = "aborted", state.aborted[entry.snapshot]
        elif entry.snapshot in state.removed:
            status, reason = "removed", state.removed[entry.snapshot]
        listed[entry.snapshot] = Listed(
            entry.snapshot,
            status,
            position,
            entry.protocol,
            entry.initiators,
            entry.view,
            entry.at_us,
            reason=reason,
            epoch=SnapshotId.parse(entry.snapshot).epoch,
            pinned=entry.snapshot in state.pinned,
        )
    return list(listed.values())


def print_listing(complete: list[Listed], others: list[Listed]) -> None:
    """Print a table of each kind."""
    _print_complete(complete)
    if others:
        say()
        _print_others(others)


def _complete(position: int, name: str, manifest: Manifest, pinned: bool) -> Listed:
    records = manifest.processes.values()
    sections = [section for record in records for section in record.in_flight.values()]
    return Listed(
        name,
        "complete",
        position,
        manifest.protocol,
        manifest.initiators,
        manifest.view.number,
        manifest.started_us,
        manifest.completed_us,
        sum(record.state.bytes + sum(delta.bytes for delta in record.deltas) for record in records),
        sum(section.messages for section in sections),
        sum(section.bytes - section.frames * RECORD.size for section in sections),
        epoch=manifest.epoch,
        pinned=pinned,
        pause_us=max((record.pause_us for record in records), default=0),
        durations_us={process: record.duration_us for process, record in manifest.processes.items()},
        parent=manifest.parent,
    )


def _print_complete(listed: list[Listed]) -> None:
    if not listed:
        say("no complete snapshot")
        return
    titles = ["view", "started", "ms", "state", "in flight", "pause ms"]
    rows = [_complete_row(one) for one in listed]
    if not any(one.pause_us for one in listed):  # a simulation has none
        titles, rows = titles[:-1], [row[:-1] for row in rows]
    print_table([Column("snapshot", name=True), *(Column(title, number=True) for title in titles)], rows)
    say()
    protocols = ", ".join(sorted({one.protocol for one in listed}))
    say(f"{count(len(listed), 'snapshot')} by {protocols}; `in flight` as messages / bytes")
    for one in listed:
        if one.pinned:
            say(f"pinned: {one.id}")


def _complete_row(one: Listed) -> list[str]:
    assert one.completed_us is not None
    assert one.in_flight_bytes is not None
    return [
        one.id,
        str(one.view),
        time_text(one.started_us),
        f"{(one.completed_us - one.started_us) / 1000:,.1f}",
        size_text(one.state_bytes or 0),
        f"{one.in_flight_messages:,} / {size_text(one.in_flight_bytes)}",
        f"{(one.pause_us or 0) / 1000:,.2f}",
    ]


def _print_others(listed: list[Listed]) -> None:
    rows = [
        [
            one.id,
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
