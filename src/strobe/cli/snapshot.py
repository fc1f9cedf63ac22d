"""`strobe snapshot`: what a store holds, and whether it holds."""

from typing import Annotated, Any

import msgspec
import typer

from strobe.causality.proof import Finding, verify
from strobe.cli.commands import JsonOption, StoreOption, new_app
from strobe.cli.freeze_frame import channels, print_frame, processes
from strobe.cli.listing import list_complete, list_others, print_listing
from strobe.cli.output import Column, Progress, count, print_json, print_table, say
from strobe.errors import SnapshotCorrupt, StoreCorrupt, UsageError
from strobe.storage import Problem, Store

app = new_app("List, show and verify the snapshots of a store.")

SnapshotArgument = Annotated[
    str, typer.Argument(metavar="[ID]", help="An id, the beginning of one, or latest.", show_default=True)
]


@app.command("list")
def list_(
    store: StoreOption,
    everything: Annotated[bool, typer.Option("--all", help="Also those aborted, open or removed.")] = False,
    json: JsonOption = False,
) -> int:
    """List the complete snapshots, oldest first.

    \b
    Example:
      strobe snapshot list --store ./strobe-demo
    """
    opened = Store.open(store)
    complete = list_complete(opened)
    others = list_others(opened) if everything else []
    if json:
        print_json({"store": opened.url, "snapshots": [*complete, *others]})
        return 0
    print_listing(complete, others)
    return 0


@app.command()
def show(store: StoreOption, id: SnapshotArgument = "latest", json: JsonOption = False) -> int:  # noqa: A002
    """Show one snapshot as a freeze-frame: every process, every channel, every message in flight.

    \b
    Example:
      strobe snapshot show latest --store ./strobe-demo
    """
    snapshot = Store.open(store).load(id)
    verdict = verify(snapshot)
    if json:
        header = {
            "id": str(snapshot.id),
            "retries": str(snapshot.retries) if snapshot.retries else None,
            "protocol": snapshot.protocol,
            "initiators": snapshot.initiators,
            "view": snapshot.view.number,
            "started_us": snapshot.started_us,
            "completed_us": snapshot.completed_us,
            "proof": {"verdict": "holds" if verdict.holds else "violated", "findings": verdict.findings},
        }
        print_json({**header, "processes": list(processes(snapshot)), "channels": list(channels(snapshot))})
    else:
        print_frame(snapshot, verdict)
    return 0 if verdict.holds else 1


class Verified(msgspec.Struct, frozen=True):
    """What verifying one snapshot comes to: `holds`, `violated` or `corrupt`."""

    id: str
    verdict: str
    findings: list[Finding] = []
    problem: str | None = None


@app.command("verify")
def verify_(
    store: StoreOption,
    id: Annotated[str | None, typer.Argument(metavar="[ID]", help="An id, the beginning of one, or latest.")] = None,  # noqa: A002
    everything: Annotated[
        bool, typer.Option("--all", help="Every snapshot, and every byte of every file of the store.")
    ] = False,
    json: JsonOption = False,
) -> int:
    """Verify the checksums of a snapshot (the latest unless told otherwise), then its causal proof.

    \b
    Example:
      strobe snapshot verify --all --store ./strobe-demo
    """
    if id is not None and everything:
        raise UsageError("give the id of one snapshot, or --all, not both")
    opened = Store.open(store)
    problems = opened.verify_bytes() if everything else []
    verified = _verify_all(opened, problems) if everything else [_verify(opened, opened.resolve(id or "latest"))]
    holds = not problems and all(one.verdict == "holds" for one in verified)
    if json:
        print_json({"store": opened.url, "holds": holds, "problems": problems, "snapshots": verified})
    else:
        _print_verified(verified, problems, everything)
    return 0 if holds else 1


def _verify_all(store: Store, problems: list[Problem]) -> list[Verified]:
    try:
        names = [name for _, name, _ in store.list()]
    except StoreCorrupt:
        assert problems, "verify_bytes reads all that the log is read from"
        return []  # without its log, nobody knows what the store should hold
    verified: list[Verified] = []
    with Progress() as progress:
        for name in names:
            progress.show(f"verified {len(verified)} of {count(len(names), 'snapshot')}")
            verified.append(_verify(store, name))
    return verified


def _verify(store: Store, name: str) -> Verified:
    try:
        verdict = verify(store.load(name))
    except SnapshotCorrupt as error:
        return Verified(name, "corrupt", problem=error.problem)
    return Verified(name, "holds" if verdict.holds else "violated", list(verdict.findings))


def _print_verified(verified: list[Verified], problems: list[Problem], everything: bool) -> None:
    rows = [[one.id, one.verdict, line] for one in verified for line in _details(one)]
    if rows:
        print_table([Column("snapshot", name=True), Column("verdict", name=True), Column("")], rows)
    told = " ".join(one.problem for one in verified if one.problem is not None)
    for problem in problems:
        if problem.place not in told:
            say(f"damaged: {problem}")
    say()
    if problems and not verified:
        say(f"{count(len(problems), 'damaged file')}; which snapshots there are cannot be known without the whole log")
        return
    holding = sum(one.verdict == "holds" for one in verified)
    bytes_text = f"; {count(len(problems), 'damaged file')}" if everything else ""
    say(f"{holding:,} of {count(len(verified), 'snapshot')} hold{'s' if holding == 1 else ''}{bytes_text}")


def _details(one: Verified) -> list[Any]:
    if one.verdict == "holds":
        return ["checksums and proof (self-consistent, signer unknown)"]
    return [one.problem] if one.problem is not None else [str(finding) for finding in one.findings]
