"""`strobe up`: run a whole system on this machine, and watch it."""

from typing import Annotated

import msgspec
import typer

from strobe.cli.asking import ask
from strobe.cli.checking import check_all, programs_of
from strobe.cli.commands import JsonOption, new_app
from strobe.cli.live import LiveSystem, SystemArgument, check_settings, load_live, with_settings
from strobe.cli.output import beside_document, print_json
from strobe.cli.session import Session
from strobe.cli.stores import CreateOption, live_store
from strobe.cli.supervisor import Supervisor
from strobe.cli.systems import open_system
from strobe.errors import UsageError

app = new_app()


@app.command()
def up(
    system: SystemArgument,
    store: Annotated[
        str | None,
        typer.Option(metavar="STORE", help="Where snapshots go (default: as the system says, else ./snapshots)."),
    ] = None,
    create: CreateOption = False,
    interval: Annotated[
        float | None, typer.Option(metavar="SECONDS", help="A snapshot that often; 0: only on demand (default: 1).")
    ] = None,
    seconds: Annotated[
        float | None, typer.Option("--for", metavar="SECONDS", help="Stop after that long (default: when interrupted).")
    ] = None,
    trace: Annotated[str | None, typer.Option(metavar="off|ordinals|full", help="Record what happens.")] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option(
            "--set", metavar="TABLE.KEY=VALUE", help="Any setting of system.toml, such as node.window_bytes=65536."
        ),
    ] = None,
    restore: Annotated[
        str | None,
        typer.Option(metavar="ID", help="Go on from this snapshot, and not from the newest that can be restored."),
    ] = None,
    fork: Annotated[
        bool, typer.Option(help="With --restore: also below output that was released, which then goes on elsewhere.")
    ] = False,
    json: JsonOption = False,
) -> int:
    """Run a coordinator and every process of a system on this machine, each as a program of its own.

    What is killed is started again; after the crash of a process the whole system rolls back to its newest snapshot and
    goes on. Started again on the same store, the system goes on where its newest snapshot was, without those who have
    left. Ctrl-C takes a last snapshot and stops everything. Programs with a loop of their own are yours to start.

    A store is made only with --create. If the store is moved away while the system runs, or its file system is not
    mounted, processes go on and everything else waits until it is back.

    If none of the last 10 snapshots was completed, or none at all of fewer, the exit code is 1, also after Ctrl-C.
    What the system declares as `conserved` is judged on every snapshot. If one violates it, or its function fails on
    all of them, the exit code is 1.

    \b
    Examples:
      strobe up examples/bank.py:bank --store ./snapshots --create
      strobe up examples/bank.py:bank --store ./snapshots
      strobe up system.toml --interval 0.5 --for 60
      strobe up system.toml --restore 000001-00000007 --fork
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
    options = coordinator_options(live, interval, trace, settings or [])
    url = store or live.store
    # In a thread: whoever interrupts need not wait for a store that does not answer.
    identity = ask(lambda: live_store(url, create, "up", system)).result().header.store
    with beside_document(json), Supervisor(system, url, ours, options, identity=identity) as supervisor:
        session = Session(supervisor, programs, quiet=json)
        status = session.run(seconds, restore, fork)
    if json:
        print_json(status)
    failed = status is not None and (status.halted or any(condition.failed for condition in status.conditions))
    return 1 if session.problem is not None or failed else 0


def coordinator_options(live: LiveSystem, interval: float | None, trace: str | None, settings: list[str]) -> list[str]:
    """Return what the coordinator is told beside its system: what the command line says, else any free ports."""
    options: list[str] = []
    if interval is not None:
        options += ["--interval", str(interval)]
    if trace is not None:
        options += ["--trace", trace]
    _check_all(live, interval, trace, settings)
    for setting in settings:
        options += ["--set", setting]
    for port in ("listen", "api") if not live.listens else ():  # no system.toml says where
        if not any(setting.startswith(f"coordinator.{port}=") for setting in settings):
            options += [f"--{port}", "127.0.0.1:0"]
    return options


def _check_all(live: LiveSystem, interval: float | None, trace: str | None, settings: list[str]) -> None:
    """Raise UsageError for what the coordinator would refuse: said here, it is seen at once, and nothing is started."""
    live = with_settings(live, settings)
    if interval is not None:
        live = live._replace(coordinator=msgspec.structs.replace(live.coordinator, interval_s=interval))
    if trace is not None:
        live = live._replace(node=msgspec.structs.replace(live.node, trace=trace))
    check_settings(live)
