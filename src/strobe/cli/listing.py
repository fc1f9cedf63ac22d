"""The snapshots of a store as a list: the complete ones, and what became of the others."""

import msgspec

from strobe.cli.freeze_frame import time_text
from strobe.cli.output import Column, count, print_table, say
from strobe.protocol.log import Begin, Manifest
from strobe.storage import Store
from strobe.storage.channel_frames import RECORD


class Listed(msgspec.Struct, frozen=True):
    """A snapshot as `list` shows it. One that is not complete has no sizes."""

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


def list_complete(store: Store) -> list[Listed]:
    """Return those that are complete, oldest first."""
    return [_complete(position, name, manifest) for position, name, manifest in store.list()]


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
            entry.snapshot, status, position, entry.protocol, entry.initiators, entry.view, entry.at_us, reason=reason
        )
    return list(listed.values())


def print_listing(complete: list[Listed], others: list[Listed]) -> None:
    """Print a table of each kind."""
    _print_complete(complete)
    if others:
        say()
        _print_others(others)


def _complete(position: int, name: str, manifest: Manifest) -> Listed:
    sections = [section for record in manifest.processes.values() for section in record.in_flight.values()]
    return Listed(
        name,
        "complete",
        position,
        manifest.protocol,
        manifest.initiators,
        manifest.view.number,
        manifest.started_us,
        manifest.completed_us,
        sum(record.state.bytes for record in manifest.processes.values()),
        sum(section.messages for section in sections),
        sum(section.bytes - section.frames * RECORD.size for section in sections),
    )


def _print_complete(listed: list[Listed]) -> None:
    if not listed:
        say("no complete snapshot")
        return
    titles = ("log", "view", "started", "ms", "state", "in flight")
    columns = [
        Column("snapshot", name=True),
        Column("protocol", name=True),
        Column("from"),
        *(Column(title, number=True) for title in titles),
    ]
    print_table(columns, [_complete_row(one) for one in listed])
    say()
    say(f"{count(len(listed), 'snapshot')}; `state` in bytes, `in flight` as messages / bytes")


def _complete_row(one: Listed) -> list[str]:
    assert one.completed_us is not None, "complete"
    return [
        one.id,
        one.protocol,
        ",".join(one.initiators),
        str(one.log_position),
        str(one.view),
        time_text(one.started_us),
        f"{(one.completed_us - one.started_us) / 1000:,.1f}",
        f"{one.state_bytes:,}",
        f"{one.in_flight_messages:,} / {one.in_flight_bytes:,}",
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
