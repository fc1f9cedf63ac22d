"""`strobe node`: run one process of a live system on this machine."""

import asyncio
import logging
import os
import signal
import sys
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from strobe.causality.signatures import sign_record
from strobe.cli.arguments.live_options import LiveSystem, SystemArgument, load_live
from strobe.cli.arguments.start_check import check_one
from strobe.cli.arguments.stores import StoreIdOption
from strobe.cli.arguments.systems import open_system
from strobe.cli.live.child import HANDED_OVER, follow_lifeline
from strobe.cli.shell.commands import new_app
from strobe.cli.shell.logging_setup import start_logging
from strobe.cli.shell.output import flush
from strobe.errors import UsageError
from strobe.runtime.addresses import is_anywhere, parse_address
from strobe.runtime.connectors.system_file import ProgramWithOwnLoop
from strobe.runtime.event_loop import run_loop
from strobe.runtime.file_descriptors import raise_limit
from strobe.runtime.node.application import ProcessApplication
from strobe.runtime.node.host import Host, Signer
from strobe.runtime.program.host_group import HostGroup, program_name
from strobe.runtime.program.shared_parts import SharedParts
from strobe.storage.inspection.keys import read_private_key

app = new_app()

EXIT_INTERRUPTED = 130

logger = logging.getLogger("strobe.node")


@app.command()
def node(
    system: SystemArgument,
    names: Annotated[
        list[str],
        typer.Option("--name", metavar="NAME", help="Which process of the system to run; repeat it to run several."),
    ],
    coordinator: Annotated[
        str | None,
        typer.Option(metavar="HOST:PORT", help="Address of the coordinator (default: that of system.toml)."),
    ] = None,
    listen: Annotated[
        str | None, typer.Option(metavar="HOST:PORT", help="Address for peers; port 0 is any free one.")
    ] = None,
    advertise: Annotated[
        str | None,
        typer.Option(metavar="HOST", help="Host name for peers, if it differs from that of --listen."),
    ] = None,
    store: Annotated[
        str | None,
        typer.Option(metavar="STORE", help="The store's path on this host, if it differs from the coordinator's."),
    ] = None,
    store_id: StoreIdOption = None,
    key: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Sign this process's part of every snapshot with this key.")
    ] = None,
    # From a supervisor that restarts it, such as `strobe up`.
    run: Annotated[str, typer.Option("--run", hidden=True)] = "",
    json_logs: Annotated[bool, typer.Option("--json-logs", help="Log one JSON object per line.")] = False,
) -> int:
    """Run a process of a system, or several: connect to its coordinator, and run until the system is stopped.

    Ended by SIGTERM or `strobe restart`, it hands over to its successor: start that with the same command, on this host
    or another, and it continues where this one has stopped. If the process is killed, the whole system rolls back to
    its newest snapshot and continues. A process that is not a member yet joins the system.

    Several processes share this program's thread, and the channels between them are in memory. If one fails, all end.

    \b
    Example, on two hosts that share a directory:
      strobe coordinator system.toml --listen 10.0.0.1:7400
      strobe node system.toml --name a --coordinator 10.0.0.1:7400 --listen 10.0.0.2:0
    """
    raise_limit()
    start_logging(json_logs, program_name(names))
    with open_system(system) as source:
        live = load_live(source)
        _check_names(names, listen)
        parts = SharedParts(program_name(names), len(names))
        hosts = [
            _make_host(live, name, parts, coordinator, listen, advertise, store, store_id, key, run) for name in names
        ]
        hosts[0].watchdog.dumps_to = sys.stderr
        code = run_loop(_run(hosts[0] if parts.alone else HostGroup(hosts, parts)))
        if hosts[0].hand_over.done and parts.alone:
            _end_at_once(HANDED_OVER if run else code)
        return code


def _check_names(names: list[str], listen: str | None) -> None:
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise UsageError(f"--name {twice} is given twice; give each process once")
    if listen is not None and len(names) > 1 and parse_address(listen, "--listen")[1]:
        raise UsageError(f"--listen {listen}: each of {len(names)} processes needs a port of its own; give port 0")


def _make_host(
    live: LiveSystem,
    name: str,
    parts: SharedParts,
    coordinator: str | None,
    listen: str | None,
    advertise: str | None,
    store: str | None,
    store_id: str | None,
    key: Path | None,
    run: str,
) -> Host:
    process = live.system.processes.get(name)
    if process is None:
        raise UsageError(f"the system has no process {name!r}; its processes are: {', '.join(live.system.processes)}")
    if isinstance(process, ProgramWithOwnLoop):
        raise UsageError(f"process {name!r} has no class: it is a program with its own event loop; start that program")
    if not run:  # `strobe up` has checked all of them
        check_one(live.system, name)
    application = ProcessApplication(name, process, live.system.decoder.decode, live.system.message_rules)
    return Host(
        name,
        live.system,
        application,
        _coordinator_at(coordinator, live.coordinator.listen),
        listen=parse_address(listen or live.listens.get(name, "127.0.0.1:0"), "--listen"),
        advertise=advertise,
        store=store,
        store_id=store_id or "",
        sign=_signer(key) if key is not None else None,
        run=run,
        parts=parts,
    )


def _coordinator_at(given: str | None, listens: str) -> tuple[str, int]:
    """Return the coordinator's address: the given one, or that of the system."""
    host, port = parse_address(given or listens, "--coordinator")
    if given is None and is_anywhere(host):
        logger.warning(
            "the coordinator listens on every interface (%s), so its host is not known; trying this host; on any "
            "other host, give --coordinator HOST:%d",
            listens,
            port,
        )
    return host, port


def _signer(path: Path) -> Signer:
    key = read_private_key(path)
    return lambda snapshot, view, process, record: sign_record(snapshot, view, process, record, key)


def _end_at_once(code: int) -> None:
    """End without the teardown of the interpreter: everything is closed, and the successor waits for this end."""
    logging.shutdown()
    flush(sys.stdout)
    os._exit(code)


async def _run(host: Host | HostGroup) -> int:
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(host.unhandled)
    # A shared program ends at once: its processes cannot hand over (E11).
    loop.add_signal_handler(signal.SIGTERM, host.hand_over.request if isinstance(host, Host) else partial(host.end, 0))
    loop.add_signal_handler(signal.SIGINT, host.end, EXIT_INTERRUPTED)
    follow_lifeline(lambda: host.end(0))
    return await host.run()
