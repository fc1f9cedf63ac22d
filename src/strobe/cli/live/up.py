"""`strobe up`: run a whole system on this machine, and watch it."""

from collections.abc import Mapping, Sequence
from typing import Annotated

import msgspec
import typer

from strobe.cli.arguments.live_options import LiveSystem, SystemArgument, check_settings, load_live, with_settings
from strobe.cli.arguments.start_check import check_all, programs_of
from strobe.cli.arguments.stores import CreateOption, live_store
from strobe.cli.arguments.systems import open_system
from strobe.cli.live.supervisor import Supervisor
from strobe.cli.live.up_session import Session
from strobe.cli.shell.commands import JsonOption, new_app
from strobe.cli.shell.output import beside_document, print_json
from strobe.cli.shell.waiting import ask
from strobe.errors import StoreMissing, UsageError
from strobe.process import System
from strobe.runtime.connectors.file_sink import FileSink
from strobe.storage import Store

app = new_app()


@app.command()
def up(
    system: SystemArgument,
    store: Annotated[
        str | None,
        typer.Option(metavar="STORE", help="The store (default: that of system.toml, else ./snapshots)."),
    ] = None,
    create: CreateOption = False,
    interval: Annotated[
        float | None,
        typer.Option(metavar="SECONDS", help="Time between two snapshots; 0: only on request (default: 1)."),
    ] = None,
    seconds: Annotated[
        float | None, typer.Option("--for", metavar="SECONDS", help="Stop after this time (default: on Ctrl-C).")
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
    restore: Annotated[
        str | None,
        typer.Option(metavar="ID", help="Start from this snapshot instead of the newest that can be restored."),
    ] = None,
    fork: Annotated[
        bool, typer.Option(help="With --restore: even if output was released since; it then continues in a new file.")
    ] = False,
    per_process: Annotated[
        int | None,
        typer.Option("--per-process", metavar="N", help="Run N processes in each OS process (default: 1)."),
    ] = None,
    json: JsonOption = False,
) -> int:
    """Run a coordinator and every process of a system on this machine, each as an operating-system process.

    A program that is killed is started again. After the crash of a process the whole system rolls back to its newest
    snapshot and continues. Started again on the same store, the system continues from its newest snapshot, without the
    processes that have left. Ctrl-C takes a last snapshot and stops everything. Programs with their own event loop are
    not started: start them yourself.

    A store is created only with --create. If the store is moved away while the system runs, or its file system is not
    mounted, processes continue and everything else waits until the store is back.

    The exit code is 1 if none of the last 10 snapshots completed (or none at all, if fewer were tried), also after
    Ctrl-C. What the system declares is checked on every snapshot: `conserved`, `invariants`, and deadlock if processes
    declare what they wait for. If a snapshot violates it, or a function fails on all of them, the exit code is 1.

    \b
    Examples:
      strobe up examples/bank.py:bank --store ./snapshots --create
      strobe up examples/bank.py:bank --store ./snapshots
      strobe up system.toml --interval 0.5 --for 60
      strobe up system.toml --restore 000001-00000007 --fork
      strobe up actors.py:actors --per-process 250
    """
    if fork and restore is None:
        raise UsageError("--fork goes with --restore ID")
    if seconds is not None and not seconds > 0:
        raise UsageError("--for takes a number of seconds above 0")
    with open_system(system) as source:
        live = load_live(source)
        check_all(live.system)
    programs = programs_of(live.system)
    ours = [name for name in live.system.processes if name not in programs]
    alone, shared = shared_programs(ours, per_process, live.hosts)
    options = coordinator_options(live, interval, trace, settings or [])
    url = store or live.store
    # In a thread, so that Ctrl-C works while the store does not respond.
    ask(lambda: refuse_old_output(live.system, url)).result()
    identity = ask(lambda: live_store(url, create, "up", system)).result().header.store
    with beside_document(json), Supervisor(system, url, alone, options, identity=identity, shared=shared) as supervisor:
        session = Session(supervisor, programs, quiet=json)
        status = session.run(seconds, restore, fork)
    if json:
        print_json(status)
    failed = status is not None and (status.halted or any(condition.failed for condition in status.conditions))
    return 1 if session.problem is not None or failed else 0


def shared_programs(
    names: Sequence[str], per_process: int | None, hosts: Mapping[str, str]
) -> tuple[list[str], list[list[str]]]:
    """Return the processes that run alone, and those that share programs.

    Processes with the same entry in `hosts` share one. The others are divided in order, `per_process` in each.
    """
    if per_process is not None and per_process < 1:
        raise UsageError(f"--per-process {per_process}: a program runs at least one process")
    by_host: dict[str, list[str]] = {}
    for name in names:
        if name in hosts:
            by_host.setdefault(hosts[name], []).append(name)
    rest, size = [name for name in names if name not in hosts], per_process or 1
    programs = [*by_host.values(), *(rest[at : at + size] for at in range(0, len(rest), size))]
    alone = [program[0] for program in programs if len(program) == 1]
    return alone, [program for program in programs if len(program) > 1]


def coordinator_options(live: LiveSystem, interval: float | None, trace: str | None, settings: list[str]) -> list[str]:
    """Return the coordinator's further options: those of the command line, or any free ports."""
    options: list[str] = []
    if interval is not None:
        options += ["--interval", str(interval)]
    if trace is not None:
        options += ["--trace", trace]
    _check_all(live, interval, trace, settings)
    for setting in settings:
        options += ["--set", setting]
    for port in ("listen", "api") if not live.listens else ():  # there is no system.toml with addresses
        if not any(setting.startswith(f"coordinator.{port}=") for setting in settings):
            options += [f"--{port}", "127.0.0.1:0"]
    return options


def _check_all(live: LiveSystem, interval: float | None, trace: str | None, settings: list[str]) -> None:
    """Raise UsageError for settings that the coordinator would refuse, before anything is started."""
    live = with_settings(live, settings)
    if interval is not None:
        live = live._replace(coordinator=msgspec.structs.replace(live.coordinator, interval_s=interval))
    if trace is not None:
        live = live._replace(node=msgspec.structs.replace(live.node, trace=trace))
    check_settings(live)


def refuse_old_output(system: System, url: str) -> None:
    """Raise UsageError if a file sink has released output, but the store has no snapshot to continue from (R2)."""
    old = {name: sink for name, sink in system.sinks.items() if isinstance(sink, FileSink) and sink.released}
    if not old or _has_snapshot(url):
        return
    name, sink = next(iter(old.items()))
    raise UsageError(
        f"sink {name!r} has released {sink.released:,} bytes into {sink.path} already, and the store {url} has no "
        "snapshot that they follow from: they belong to another store. Use that store, or move "
        f"{sink.path} and {sink.path}.staged away to begin again"
    )


def _has_snapshot(url: str) -> bool:
    try:
        return bool(Store.open(url).state().committed)
    except StoreMissing:
        return False
