"""`strobe coordinator`: run the coordinator of a live system on this machine."""

import asyncio
import signal
from typing import Annotated, Any

import msgspec
import typer

from strobe.cli.arguments.live_options import LiveSystem, SystemArgument, load_live, with_settings
from strobe.cli.arguments.stores import CreateOption, StoreIdOption, way_to_create
from strobe.cli.arguments.systems import open_system
from strobe.cli.live.child import follow_lifeline
from strobe.cli.live.judge_worker import command_of
from strobe.cli.shell.commands import new_app
from strobe.cli.shell.logging_setup import start_logging
from strobe.errors import UsageError
from strobe.protocol.values.log_entries import EntryRef
from strobe.runtime.coordinator.coordinator import Coordinator
from strobe.runtime.event_log import EventLog
from strobe.runtime.event_loop import run_loop
from strobe.runtime.file_descriptors import raise_limit

app = new_app()

EXIT_INTERRUPTED = 130


@app.command()
def coordinator(
    system: SystemArgument,
    store: Annotated[
        str | None,
        typer.Option(metavar="STORE", help="The store (default: that of system.toml, else ./snapshots)."),
    ] = None,
    create: CreateOption = False,
    store_id: StoreIdOption = None,
    listen: Annotated[
        str | None, typer.Option(metavar="HOST:PORT", help="Address for nodes; port 0 is any free one.")
    ] = None,
    api: Annotated[str | None, typer.Option(metavar="HOST:PORT", help="Address of the HTTP API.")] = None,
    interval: Annotated[
        float | None,
        typer.Option(metavar="SECONDS", help="Time between two snapshots; 0: only on request (default: 1)."),
    ] = None,
    timeout: Annotated[
        float | None, typer.Option(metavar="SECONDS", help="Abort a snapshot that takes longer (default: 10).")
    ] = None,
    silence: Annotated[
        float | None,
        typer.Option(metavar="SECONDS", help="A node without a heartbeat for this long has failed (default: 3)."),
    ] = None,
    overlapping: Annotated[
        int | None, typer.Option(metavar="N", help="Maximum number of open snapshots (default: 1).")
    ] = None,
    keep_last: Annotated[
        int | None, typer.Option(metavar="N", help="Keep the newest N complete snapshots (default: all).")
    ] = None,
    trace: Annotated[
        str | None, typer.Option(metavar="off|ordinals|full", help="Record the events of every process.")
    ] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option(
            "--set", metavar="TABLE.KEY=VALUE", help="Any setting of system.toml, such as node.window_bytes=65536."
        ),
    ] = None,
    # From a supervisor that restarts it, such as `strobe up`.
    last_entry: Annotated[str, typer.Option("--last-entry", hidden=True)] = "",
    json_logs: Annotated[bool, typer.Option("--json-logs", help="Log one JSON object per line.")] = False,
) -> int:
    """Run the coordinator of a system: nodes connect to it, and it takes snapshots and rolls back.

    All its state is in the store. If it is killed and started again on the same store, it continues at the end of the
    log; the processes run on meanwhile. By default it listens on this machine only.

    A store is created only with --create. If systemd or another program restarts it, give --store-id: then it waits
    while that store is absent or another one is in its place, and reports that in its log and its API.

    \b
    Examples:
      strobe coordinator examples/bank.py:bank --store ./snapshots --create
      strobe coordinator system.toml --listen 10.0.0.1:7400 --interval 0.5 --json-logs
    """
    raise_limit()
    events = start_logging(json_logs, "coordinator")
    given: dict[str, dict[str, Any]] = {
        "coordinator": {
            "listen": listen,
            "api": api,
            "interval_s": interval,
            "timeout_s": timeout,
            "silence_s": silence,
            "overlapping_max": overlapping,
        },
        "retention": {"keep_last": keep_last},
        "node": {"trace": trace},
    }
    with open_system(system) as source:
        # Options take precedence over settings: `strobe up` fixes the ports of a restarted coordinator.
        live = _with_given(with_settings(load_live(source), settings or []), given)
    if create and store_id is not None:
        raise UsageError("--create makes a new store, and --store-id waits for an existing one; give only one of them")
    url = store or live.store
    with way_to_create(url, "coordinator", system):
        return run_loop(_run(live, system, url, store_id or "", create, _entry(last_entry), events))


def _entry(text: str) -> EntryRef | None:
    """Return the entry that the log must have, from POSITION:CHECKSUM; None if the text is empty."""
    if not text:
        return None
    position, _, checksum = text.partition(":")
    try:
        return msgspec.convert({"position": int(position), "blake3": checksum}, EntryRef)
    except ValueError as error:
        raise UsageError(f"--last-entry {text}: give POSITION:CHECKSUM of an entry of the log") from error


def _with_given(live: LiveSystem, given: dict[str, dict[str, Any]]) -> LiveSystem:
    """Return the settings with those given on the command line replaced."""
    for table, settings in given.items():
        given = {name: value for name, value in settings.items() if value is not None}
        live = live._replace(**{table: msgspec.structs.replace(getattr(live, table), **given)})
    return live


async def _run(
    live: LiveSystem, system: str, store: str, store_id: str, create: bool, known: EntryRef | None, events: EventLog
) -> int:
    # Import the web server here: `--help` need not wait for it.
    from strobe.runtime.api.service import CoordinatorService

    coordinator = Coordinator(
        live.system, store, live.coordinator, live.node, live.retention, events, store_id, create, known
    )
    service = CoordinatorService(coordinator, judge=command_of(system, store, live.coordinator))
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGTERM, service.end, 0)
    loop.add_signal_handler(signal.SIGINT, service.end, EXIT_INTERRUPTED)
    follow_lifeline(lambda: service.end(0))
    return await service.run()
