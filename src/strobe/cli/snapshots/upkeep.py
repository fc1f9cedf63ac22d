"""`strobe snapshot pin`, `unpin`, `remove` and `collect`: decide what a store keeps (E8).

Each appends to the log, next to a running coordinator if there is one. The decision is based on the log right up to the
appended entry.
"""

import time
from typing import Annotated

import typer

from strobe.cli.shell.commands import SNAPSHOT_NAME, JsonOption, StoreOption
from strobe.cli.shell.output import Column, count, print_json, print_line, print_table, size_text
from strobe.cli.snapshots.show import time_text
from strobe.errors import UsageError
from strobe.protocol.values.log_entries import Pin
from strobe.storage import LogState, Store, append_when
from strobe.storage.checkpoints import checkpoint_writer
from strobe.storage.store import retention
from strobe.storage.store.retention import RetentionPlan, RetentionResult
from strobe.storage.store.snapshot_names import Printed, printed_names

NamedArgument = Annotated[str, typer.Argument(metavar="ID", help=SNAPSHOT_NAME)]
ManyArgument = Annotated[
    list[str], typer.Argument(metavar="ID...", help="Ids, whole or short (1.7), or their beginnings.")
]
_FILES_MAX = 10


def pin(id: NamedArgument, store: StoreOption, json: JsonOption = False) -> int:  # noqa: A002
    """Keep a snapshot until it is unpinned; retention does not remove it.

    \b
    Example:
      strobe snapshot pin latest --store ./strobe-demo
    """
    return _set_pin(store, id, True, json)


def unpin(id: NamedArgument, store: StoreOption, json: JsonOption = False) -> int:  # noqa: A002
    """Unpin a snapshot: retention may remove it again.

    \b
    Example:
      strobe snapshot unpin 1.3 --store ./strobe-demo
    """
    return _set_pin(store, id, False, json)


def remove(
    ids: ManyArgument,
    store: StoreOption,
    reason: Annotated[str, typer.Option(metavar="TEXT", help="The reason; it is kept in the log.")] = "removed by hand",
    json: JsonOption = False,
) -> int:
    """Remove complete snapshots; `strobe snapshot collect` then frees their space.

    The newest complete snapshot and pinned ones are refused. If one of the ids is refused, nothing is removed.

    \b
    Example:
      strobe snapshot remove 1.3 --reason "taken by mistake" --store ./strobe-demo
    """
    opened = Store.open(store)
    names = list(dict.fromkeys(opened.resolve(name) for name in ids))
    for name in names:
        _refuse_protected(opened.state(), name, [])
    removed: list[str] = []
    for name in names:
        if not retention.remove(opened, name, reason, _now_us()):
            _refuse_protected(opened.state(), name, removed)  # it has just been pinned
        removed.append(name)
    if json:
        print_json({"store": opened.url, "removed": removed, "reason": reason})
        return 0
    for name in removed:
        print_line(f"removed {name}")
    print_line(f"{count(len(removed), 'snapshot')} removed; to free the space: strobe snapshot collect --store {store}")
    return 0


def collect(
    store: StoreOption,
    keep_last: Annotated[int, typer.Option(min=0, metavar="N", help="Keep the newest N complete snapshots.")] = 0,
    hourly: Annotated[
        int, typer.Option(min=0, metavar="N", help="Also keep the newest of each of the last N hours.")
    ] = 0,
    daily: Annotated[
        int, typer.Option(min=0, metavar="N", help="Also keep the newest of each of the last N days.")
    ] = 0,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only show what would be removed, file by file.")] = False,
    json: JsonOption = False,
) -> int:
    """Apply retention, then delete the files that no snapshot needs: of removed and aborted snapshots, and of crashes.

    Without numbers every complete snapshot is kept. The newest, pinned and open ones are never removed. Hours and days
    are in UTC; those without a snapshot do not count.

    \b
    Example:
      strobe snapshot collect --keep-last 10 --hourly 24 --daily 7 --dry-run --store ./strobe-demo
    """
    opened = Store.open(store, checkpoint_every=checkpoint_writer.EVERY)
    state = opened.state()
    planned = retention.plan(state, keep_last, hourly, daily, _now_us())
    # Before the log is read further: others may also remove some of them.
    started_us = {name: state.committed[name].started_us for name in planned.removed}
    printed = printed_names(state)
    applied = retention.apply(opened, planned, dry_run)
    if json:
        print_json({"store": opened.url, "dry_run": dry_run, **_document(planned, applied)})
    else:
        _print_collected(planned, applied, started_us, dry_run, printed)
    return 0


def _set_pin(store: str, name: str, pinned: bool, json: bool) -> int:
    opened = Store.open(store)
    snapshot = opened.resolve(name)

    def decide(state: LogState) -> Pin | None:
        opened.resolve(snapshot)  # it may have been removed since
        return None if (snapshot in state.pinned) == pinned else Pin(snapshot, pinned, _now_us())

    changed = append_when(opened, decide) is not None
    if json:
        print_json({"store": opened.url, "id": snapshot, "pinned": pinned, "changed": changed})
    else:
        what = "is pinned" if pinned else "is not pinned"
        print_line(f"{snapshot} {what}{', as before' if not changed and pinned else ''}")
    return 0


def _refuse_protected(state: LogState, name: str, removed: list[str]) -> None:
    for protected in retention.protections(state, name):
        what = {"newest": "is the newest complete snapshot", "pinned": "is pinned"}.get(protected.reason, "is needed")
        before = f"; removed before that: {', '.join(removed)}" if removed else "; nothing was removed"
        raise UsageError(f"{name} {what}: {protected.way_out}{before}")


def _document(planned: RetentionPlan, applied: RetentionResult) -> dict[str, object]:
    return {
        "kept": [{"id": name, "reasons": reasons} for name, reasons in planned.kept.items()],
        "removed": applied.removed,
        "files": applied.collected.names,
        "bytes": applied.collected.bytes,
    }


def _print_collected(
    planned: RetentionPlan, applied: RetentionResult, started_us: dict[str, int], dry_run: bool, printed: Printed
) -> None:
    rows = [[printed(name), time_text(started_us[name]), "remove"] for name in applied.removed]
    if dry_run:
        # A dry run shows what stays, and why; afterwards `list` shows it.
        rows += [[printed(name), "", f"keep: {', '.join(reasons)}"] for name, reasons in planned.kept.items()]
    if rows:
        print_table([Column("snapshot", name=True), Column("started", number=True), Column("")], rows)
        print_line()
    files = applied.collected.names
    if dry_run and files:
        print_line("would remove:")
        for name in files[:_FILES_MAX]:
            print_line(f"  {name}")
        if len(files) > _FILES_MAX:
            print_line(f"  and {count(len(files) - _FILES_MAX, 'more file')}; --json shows all")
    kept, would = count(len(planned.kept), "complete snapshot"), "would be " if dry_run else ""
    freed = f"{count(len(files), 'file')} with {size_text(applied.collected.bytes)} {would}freed"
    print_line(f"{kept} {would}kept, {len(applied.removed):,} {would}removed; {freed}")


def _now_us() -> int:
    return time.time_ns() // 1000
