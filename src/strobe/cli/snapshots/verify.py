"""`strobe snapshot verify`: verifies level by level, and reports what was checked and what was not (S4)."""

from contextlib import ExitStack
from pathlib import Path
from typing import Annotated

import msgspec
import typer

from strobe.cli.shell.commands import SNAPSHOT_NAME, JsonOption, KeysOption, StoreOption, ViewOption
from strobe.cli.shell.output import Column, ProgressLine, beside_document, count, print_json, print_line, print_table
from strobe.errors import UNREADABLE, SnapshotNotFound, StoreCorrupt, UsageError
from strobe.protocol.values.view import ChannelSpec, View
from strobe.storage import Problem, Store
from strobe.storage.inspection.keys import read_public_keys
from strobe.storage.inspection.verification import Level, Signers, StoreLevels, Verified
from strobe.storage.store.snapshot_names import Printed, printed_names

_NAMES = {Level.CAUSAL: "causal proof", Level.RESTORE: "trial restore"}


class ViewFile(msgspec.Struct, frozen=True):
    """A view in the format of `--view` and of `strobe snapshot show --json`; without a number, any number matches."""

    processes: tuple[str, ...]
    channels: tuple[ChannelSpec, ...]
    number: int = 0


def verify_(
    store: StoreOption,
    id: Annotated[str | None, typer.Argument(metavar="[ID]", help=SNAPSHOT_NAME)] = None,  # noqa: A002
    everything: Annotated[
        bool, typer.Option("--all", help="Every snapshot, and every byte of every file of the store.")
    ] = False,
    level: Annotated[
        Level, typer.Option(help="How much to check; each level includes those before it.")
    ] = Level.CAUSAL,
    system: Annotated[
        str | None, typer.Option(metavar="SYSTEM", help="file.py:name or system.toml, for invariants and restore.")
    ] = None,
    keys: KeysOption = None,
    view: ViewOption = None,
    json: JsonOption = False,
) -> int:
    """Verify a snapshot (default: the latest): its blobs, their checksums, its causal proof.

    With --system it can also check what the system declares (`conserved` and `invariants`), and that the snapshot can
    be restored.

    \b
    Examples:
      strobe snapshot verify --all --store ./strobe-demo
      strobe snapshot verify latest --level restore --system bank.py:bank --store ./strobe-demo
    """
    _check_options(id, everything, level, system, keys, view)
    opened = Store.open(store)
    signers = Signers(read_public_keys(keys), read_view(view) if view is not None else None) if keys else None
    problems = opened.verify_bytes() if everything and level is not Level.EXISTS else []
    names = _names(opened, problems) if everything else [opened.resolve(id or "latest")]
    with beside_document(json):  # a system may print
        verified, removed = _verify_all(opened, names, level, system, signers)
    if removed and not everything:
        raise removed[0]
    holds = not problems and all(one.holds for one in verified)
    if json:
        shown = [_document(one) for one in verified]
        found = {"problems": problems, "snapshots": shown, "removed_meanwhile": [one.snapshot_id for one in removed]}
        print_json({"store": opened.url, "level": level, "holds": holds, **found})
    else:
        _print_verified(verified, problems, everything and level is not Level.EXISTS, printed_names(opened.known))
        if removed:
            print_line(f"{count(len(removed), 'snapshot')} skipped: removed meanwhile")
        _print_scope(level, signers is not None, all(one.holds for one in verified))
    return 0 if holds else 1


def _check_options(
    id_: str | None, everything: bool, level: Level, system: str | None, keys: Path | None, view: Path | None
) -> None:
    needs_system = level in (Level.INVARIANTS, Level.RESTORE)
    if id_ is not None and everything:
        raise UsageError("give the id of one snapshot, or --all, not both")
    if needs_system and system is None:
        raise UsageError(f"--level {level} runs your own code: name the system with --system file.py:name")
    if system is not None and not needs_system:
        raise UsageError(f"--level {level} needs no --system; for a trial restore add --level restore")
    if keys is not None and Level.CAUSAL not in level.included:
        raise UsageError(
            f"signatures are checked with the causal proof, and --level {level} ends before it; leave one out"
        )
    if view is not None and keys is None:
        raise UsageError("--view is the view that was signed: give the public keys as well, with --keys DIR")


def read_view(path: Path) -> View:
    """Return the view in a file; raise UsageError if there is none."""
    try:
        found = msgspec.json.decode(path.read_bytes(), type=ViewFile)
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror}") from error
    except UNREADABLE as error:
        shape = '{"processes": ["a", ...], "channels": [{"id": "a->b", "source": "a", "target": "b"}, ...]}'
        raise UsageError(f"{path} is not a view ({error}); it looks like {shape}") from error
    return View(found.number, found.processes, found.channels)


def _names(store: Store, problems: list[Problem]) -> list[str]:
    try:
        return [name for _, name, _ in store.list()]
    except StoreCorrupt:
        if not problems:
            raise
        return []  # without its log, the expected contents of the store are unknown


def _verify_all(
    store: Store, names: list[str], level: Level, system: str | None, signers: Signers | None
) -> tuple[list[Verified], list[SnapshotNotFound]]:
    """Return the results, and the snapshots that were removed before they could be verified."""
    verified: list[Verified] = []
    removed: list[SnapshotNotFound] = []
    with ExitStack() as stack:
        progress = stack.enter_context(ProgressLine())
        levels = StoreLevels(store, signers)
        verify = levels.verify
        if system is not None:
            from strobe.cli.arguments.systems import open_system
            from strobe.runtime.recovery.trial_restore import TrialLevels

            verify = TrialLevels(store, levels, stack.enter_context(open_system(system)).load).verify
        for name in names:
            progress.show(f"verified {len(verified)} of {count(len(names), 'snapshot')}")
            try:
                verified.append(verify(name, level))
            except SnapshotNotFound as error:
                removed.append(error)
    return verified, removed


def _document(one: Verified) -> dict[str, object]:
    return {
        "id": one.id,
        "verdict": one.verdict,
        "findings": one.findings,
        "problem": "; ".join(map(str, one.findings)) or None,
        "checks": one.checks,
    }


def _print_verified(verified: list[Verified], problems: list[Problem], files_too: bool, name: Printed) -> None:
    rows = [[name(one.id), one.verdict, line] for one in verified for line in _details(one)]
    if rows:
        print_table([Column("snapshot", name=True), Column("verdict", name=True), Column("")], rows)
    reported = {finding.subject for one in verified for finding in one.findings}
    for problem in problems:
        if problem.place not in reported:
            print_line(f"damaged: {problem}")
    print_line()
    if problems and not verified:
        print_line(
            f"{count(len(problems), 'damaged file')}; the list of snapshots cannot be known without the whole log"
        )
        return
    holding = sum(one.holds for one in verified)
    bytes_text = f"; {count(len(problems), 'damaged file')}" if files_too else ""
    print_line(f"{holding:,} of {count(len(verified), 'snapshot')} hold{'s' if holding == 1 else ''}{bytes_text}")


def _details(one: Verified) -> list[str]:
    if not one.holds:
        return [str(finding) for finding in one.findings]
    # Details of the levels before the proof add little if the proof holds too; --json has them.
    worth = [check.detail for check in one.checks if check.level not in (Level.EXISTS, Level.CHECKSUMS)]
    return ["; ".join(worth or [one.checks[-1].detail])]


def _print_scope(level: Level, keys: bool, holds: bool) -> None:
    """Print what was checked and what was not: a verdict covers only what was checked."""
    end = "" if holds else " (of each snapshot, up to the first level that does not hold)"
    print_line(f"checked: {', '.join(map(_name, level.included))}{', signatures' if keys else ''}{end}")
    left = [_name(each) for each in Level if each not in level.included]
    if not keys:
        left.append("signatures")
    if left:
        print_line(f"not checked: {', '.join(left)}; see strobe snapshot verify --help")


def _name(level: Level) -> str:
    return _NAMES.get(level, str(level))
