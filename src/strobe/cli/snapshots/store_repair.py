"""`strobe store repair`: shows what is wrong with a log, and repairs it."""

import sys
import time
from typing import Annotated

import typer

from strobe.cli.shell.commands import JsonOption, new_app
from strobe.cli.shell.output import count, note, print_json, print_line
from strobe.errors import UsageError
from strobe.runtime.api.client import running_for
from strobe.storage.files.backend import StorageBackend
from strobe.storage.files.layout import ASIDE
from strobe.storage.files.urls import backend_at
from strobe.storage.store.repair import Examined, LogFinding, examine, fence_off, set_aside

app = new_app("Check and repair the log of a store.")


@app.command()
def repair(
    store: Annotated[
        str, typer.Argument(metavar="STORE", help="The store: a directory, or a URL such as s3://BUCKET/PREFIX.")
    ],
    fence: Annotated[
        int | None,
        typer.Option(metavar="POSITION", min=0, help="Fence this entry off: from then on it has no effect."),
    ] = None,
    aside: Annotated[
        int | None,
        typer.Option(
            "--set-aside",
            metavar="POSITION",
            min=0,
            help="Move this file and all later ones out of the log, if they are beyond a long gap.",
        ),
    ] = None,
    reason: Annotated[
        str, typer.Option(metavar="TEXT", help="The reason; it is kept in the log.")
    ] = "fenced off by hand",
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask for confirmation.")] = False,
    json: JsonOption = False,
) -> int:
    """Check every entry of a store's log, and fence off one that cannot be read.

    Without --fence or --set-aside nothing is changed. The exit code is 0 if all entries are good or fenced off. It is 1
    if one is not, or if the newest entries are missing. A log with a bad entry cannot be used: put the file back from a
    copy of the store if there is one. If not, --fence appends an entry by which the bad one has no effect. This cannot
    be undone. Adjacent missing entries are fenced off together.

    Files more than 1,000 positions beyond the end of the log are not part of it, and the log cannot be continued while
    they are there. --set-aside moves them to STORE/aside, with their bytes unchanged.

    \b
    Examples:
      strobe store repair ./snapshots
      strobe store repair ./snapshots --fence 17 --reason "the disk lost it"
      strobe store repair ./snapshots --set-aside 900000
    """
    backend = backend_at(store)
    if fence is not None and aside is not None:
        raise UsageError("give either --fence or --set-aside, not both")
    if fence is not None:
        _fence(backend, store, fence, reason, yes)
    moved = _set_aside(backend, store, aside, yes) if aside is not None else []
    examined = examine(backend)
    if json:
        print_json(
            {
                "store": backend.url,
                "entries": examined.entries,
                "checkpoint": examined.base,
                "absent": examined.absent,
                "findings": examined.findings,
                "missing": examined.missing,
                "fenced": fence,
                "aside": moved,
            }
        )
    else:
        _report(examined, store)
    return 1 if examined.open or examined.missing else 0


def _fence(backend: StorageBackend, store: str, position: int, reason: str, yes: bool) -> None:
    _require_stopped(store)
    examined = examine(backend)
    found = (found for found in examined.open if found.position <= position <= found.last)
    finding = next(found, None)
    if finding is not None and examined.gap is None and not examined.beginning_lost:  # else `fence_off` says why not
        _show(finding)
        if not yes:
            _confirm(f"{_entries(finding)} will have no effect from now on. This cannot be undone.")
    fence_off(backend, position, reason, time.time_ns() // 1000)


def _set_aside(backend: StorageBackend, store: str, position: int, yes: bool) -> list[str]:
    _require_stopped(store)
    if not yes:
        _confirm(f"The files of the log from entry {position} on will be moved to {backend.url}/{ASIDE}.")
    moved = set_aside(backend, position)
    for name in moved:
        note(f"moved out of the log: {name}")
    return moved


def _require_stopped(store: str) -> None:
    if running_for(store) is not None:
        raise UsageError(f"a coordinator is running on the store {store}; stop it first")


def _confirm(what: str) -> None:
    if not sys.stdin.isatty():
        raise UsageError("cannot ask for confirmation without a terminal; confirm with --yes")
    note(f"{what} Continue? (yes/no)")
    if sys.stdin.readline().strip().lower() != "yes":
        raise UsageError("nothing was changed")


def _entries(finding: LogFinding) -> str:
    if finding.last == finding.position:
        return f"Entry {finding.position}"
    return f"Entries {finding.position} to {finding.last}"


def _report(examined: Examined, store: str) -> None:
    for finding in examined.findings:
        print_line(f"{finding.place}: {finding.problem}")
        print_line(f"  lost without it: {finding.lost}")
        if finding.fenced:
            print_line("  fenced off: it has no effect")
    print_line(f"{count(examined.entries, 'entry', 'entries')} checked, {len(examined.open)} bad")
    if examined.missing:
        print_line(examined.missing)
    base = examined.base
    if examined.absent:
        absent = count(examined.absent, "entry", "entries")
        print_line(f"{absent} before the checkpoint at {base} absent: the checkpoint has their content")
    needed = [finding for finding in examined.open if finding.position >= base]
    if len(needed) < len(examined.open):
        print_line(
            f"put the files back from a copy of the store; readers start at the checkpoint at {base} without them"
        )
    if examined.beginning_lost:
        return
    if examined.gap is not None and not examined.missing:
        print_line("put the files back from a copy of the store, or move the files beyond the gap out of the log:")
        print_line(f"    strobe store repair {store} --set-aside {examined.gap.end}")
    elif needed and examined.gap is None:
        print_line("put the files back from a copy of the store, or fence an entry off:")
        print_line(f"    strobe store repair {store} --fence {needed[0].position}")


def _show(finding: LogFinding) -> None:
    note(f"{finding.place}: {finding.problem}")
    note(f"lost without it: {finding.lost}")
