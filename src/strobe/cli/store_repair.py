"""`strobe store repair`: what is wrong with a log, and what to do about it."""

import sys
import time
from typing import Annotated

import typer

from strobe.cli.commands import JsonOption, new_app
from strobe.cli.output import count, note, print_json, say
from strobe.errors import UsageError
from strobe.runtime.client import running_for
from strobe.storage.locating import place_at
from strobe.storage.place import Place
from strobe.storage.repair import Examined, Finding, examine, fence_off

app = new_app("Look after a store itself, rather than after its snapshots.")


@app.command()
def repair(
    store: Annotated[
        str, typer.Argument(metavar="STORE", help="The store: a directory, or a URL as s3://BUCKET/PREFIX.")
    ],
    fence: Annotated[
        int | None,
        typer.Option(metavar="POSITION", min=0, help="Decide that this entry has no effect."),
    ] = None,
    reason: Annotated[str, typer.Option(metavar="TEXT", help="Why; it stays in the log.")] = "fenced off by hand",
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask for confirmation.")] = False,
    json: JsonOption = False,
) -> int:
    """Check every entry of a store's log, and fence off one that nobody can read.

    Without --fence nothing is changed. The exit code is 0 if all entries are good or fenced off, and 1 if not, or if
    the newest entries are missing. A log with an entry that is no good cannot be used: put the file back from a copy
    of the store if there is one. If not, --fence appends an entry by which the other one has no effect. That cannot be
    undone.

    \b
    Example:
      strobe store repair ./snapshots
      strobe store repair ./snapshots --fence 17 --reason "the disk lost it"
    """
    place = place_at(store)
    if fence is not None:
        _fence(place, store, fence, reason, yes)
    examined = examine(place)
    if json:
        print_json(
            {
                "store": place.url,
                "entries": examined.entries,
                "checkpoint": examined.base,
                "absent": examined.absent,
                "findings": examined.findings,
                "missing": examined.missing,
                "fenced": fence,
            }
        )
    else:
        _report(examined, store)
    return 1 if examined.open or examined.missing else 0


def _fence(place: Place, store: str, position: int, reason: str, yes: bool) -> None:
    running = running_for(store)
    if running is not None:
        raise UsageError(f"a coordinator runs on the store {store}; stop it first")
    examined = examine(place)
    finding = next((found for found in examined.open if found.position == position), None)
    if finding is not None:  # else `fence_off` says why not
        _show(finding)
        if not yes:
            _confirm(finding)
    fence_off(place, position, reason, time.time_ns() // 1000)


def _confirm(finding: Finding) -> None:
    if not sys.stdin.isatty():
        raise UsageError("nobody can be asked whether to fence it off: there is no terminal; confirm by --yes")
    note(f"Entry {finding.position} will have no effect from now on. This cannot be undone. Go on? (yes/no)")
    if sys.stdin.readline().strip().lower() != "yes":
        raise UsageError("nothing was changed")


def _report(examined: Examined, store: str) -> None:
    for finding in examined.findings:
        say(f"{finding.place}: {finding.problem}")
        say(f"  lost without it: {finding.lost}")
        if finding.fenced:
            say("  fenced off: it has no effect")
    say(f"{count(examined.entries, 'entry', 'entries')} checked, {len(examined.open)} bad")
    if examined.missing:
        say(examined.missing)
    base = examined.base
    if examined.absent:
        absent = count(examined.absent, "entry", "entries")
        say(f"{absent} before the checkpoint at {base} absent: what they said is in the checkpoint")
    needed = [finding for finding in examined.open if finding.position >= base]
    if len(needed) < len(examined.open):
        say(f"put the files back from a copy of the store; readers start at the checkpoint at {base}, and go on")
    if needed:
        say("put the files back from a copy of the store; or decide to do without one:")
        say(f"    strobe store repair {store} --fence {needed[0].position}")


def _show(finding: Finding) -> None:
    note(f"{finding.place}: {finding.problem}")
    note(f"lost without it: {finding.lost}")
