"""`strobe snapshot`: shows and verifies the snapshots of a store."""

from typing import Annotated

import typer

from strobe.causality.proof import Verdict, verify
from strobe.cli.shell.commands import SNAPSHOT_NAME, JsonOption, StoreOption, new_app
from strobe.cli.shell.output import print_json
from strobe.cli.snapshots.diff import diff
from strobe.cli.snapshots.listing import list_complete, list_others, print_listing
from strobe.cli.snapshots.predicates import predicates
from strobe.cli.snapshots.show import channels, print_frame, print_value, processes
from strobe.cli.snapshots.take import take
from strobe.cli.snapshots.upkeep import collect, pin, remove, unpin
from strobe.cli.snapshots.verify import verify_
from strobe.protocol import Snapshot
from strobe.storage import Committed, Store
from strobe.storage.inspection.state_path import find_value
from strobe.storage.store.snapshot_names import printed_names

app = new_app("List, show, verify, compare and remove the snapshots of a store.")

SnapshotArgument = Annotated[str, typer.Argument(metavar="[ID]", help=SNAPSHOT_NAME, show_default=True)]


@app.command("list")
def list_(
    store: StoreOption,
    everything: Annotated[bool, typer.Option("--all", help="Also list aborted, open and removed ones.")] = False,
    last: Annotated[int | None, typer.Option(metavar="N", min=1, help="Only the newest N.")] = None,
    json: JsonOption = False,
) -> int:
    """List the complete snapshots, oldest first.

    \b
    Example:
      strobe snapshot list --last 20 --store ./strobe-demo
    """
    opened = Store.open(store)
    complete = list_complete(opened, last)
    others = list_others(opened, last) if everything else []
    if json:
        print_json({"store": opened.url, "snapshots": [*complete, *others]})
        return 0
    print_listing(complete, others, opened.known)
    return 0


@app.command()
def show(
    store: StoreOption,
    id: SnapshotArgument = "latest",  # noqa: A002
    path: Annotated[
        str | None, typer.Argument(metavar="[PATH]", help="Only this value: a process, then .field or [key].")
    ] = None,
    json: JsonOption = False,
) -> int:
    """Show one snapshot as a freeze-frame: every process, every channel, every message in flight.

    With a path, show one value: the state of a process, a key of a keyed state, a field. Quote it for the shell.

    \b
    Examples:
      strobe snapshot show latest --store ./strobe-demo
      strobe snapshot show latest a.balance --store ./strobe-demo
      strobe snapshot show 1.7 'b[140525]' --store ./snapshots
    """
    opened = Store.open(store)
    if path is not None:
        found = find_value(opened, id, path)
        print_json(found) if json else print_value(found)
        return 0
    snapshot = opened.load(id)
    state = opened.known  # the state at the time of loading: the snapshot may have been removed since
    complete = state.committed[str(snapshot.id)]
    pinned = str(snapshot.id) in state.pinned
    verdict = verify(snapshot)
    if json:
        parts = {"processes": list(processes(snapshot, complete.manifest)), "channels": list(channels(snapshot))}
        print_json({**_header(snapshot, complete, pinned, verdict), **parts})
    else:
        print_frame(snapshot, complete.manifest, verdict, pinned, printed_names(state)(str(snapshot.id)))
    return 0 if verdict.holds else 1


def _header(snapshot: Snapshot, complete: Committed, pinned: bool, verdict: Verdict) -> dict[str, object]:
    return {
        "id": str(snapshot.id),
        "log_position": complete.position,
        "retries": str(snapshot.retries) if snapshot.retries else None,
        "parent": complete.manifest.parent,
        "pinned": pinned,
        "protocol": snapshot.protocol,
        "initiators": snapshot.initiators,
        "epoch": complete.manifest.epoch,
        "view": snapshot.view.number,
        "topology": snapshot.view,
        "started_us": snapshot.started_us,
        "completed_us": snapshot.completed_us,
        "state_bytes": snapshot.state_bytes,
        "in_flight_messages": snapshot.in_flight_messages,
        "in_flight_bytes": snapshot.in_flight_bytes,
        "proof": {"verdict": "holds" if verdict.holds else "violated", "findings": verdict.findings},
    }


app.command("verify")(verify_)
app.command()(take)
app.command()(diff)
app.command()(predicates)
app.command()(pin)
app.command()(unpin)
app.command()(remove)
app.command()(collect)
