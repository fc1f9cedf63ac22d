"""`strobe up`: run a whole system on this machine, and watch it."""

import contextlib
import signal
import time
from collections.abc import Iterator, Sequence
from types import FrameType
from typing import Annotated, Any

import msgspec
import typer

from strobe.cli.commands import JsonOption, new_app
from strobe.cli.live import LiveSystem, SystemArgument, check_settings, load_live, with_settings
from strobe.cli.output import beside_document, count, note, print_json, say
from strobe.cli.supervisor import Gone, Supervisor
from strobe.cli.systems import open_system
from strobe.cli.watch import Watch
from strobe.errors import StoreError, TransportError, UsageError
from strobe.runtime.client import RequestRefused
from strobe.runtime.documents import COMMITTED, Status, Taken
from strobe.runtime.system_file import ProgramWithOwnLoop
from strobe.storage import Store

app = new_app()

LOOK_EVERY_S = 0.5
TICK_S = 0.05
LAST_SNAPSHOT_S = 10.0


@app.command()
def up(
    system: SystemArgument,
    store: Annotated[
        str | None,
        typer.Option(metavar="STORE", help="Where snapshots go (default: as the system says, else ./snapshots)."),
    ] = None,
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

    \b
    Examples:
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
    processes = live.system.processes
    programs = [name for name, process in processes.items() if isinstance(process, ProgramWithOwnLoop)]
    ours = [name for name in processes if name not in programs]
    options = coordinator_options(live, interval, trace, settings or [])
    with beside_document(json), Supervisor(system, store or live.store, ours, options) as supervisor:
        status = Session(supervisor, programs, quiet=json).run(seconds, restore, fork)
    if json:
        print_json(status)
    return 1 if status is not None and status.halted else 0


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


class Session:
    """One `strobe up`, from start to stop."""

    def __init__(self, supervisor: Supervisor, programs: Sequence[str] = (), quiet: bool = False) -> None:
        self._supervisor = supervisor
        self._programs = programs
        self._watch = Watch(quiet)
        self._status: Status | None = None
        # Who has failed by itself, and was not told of yet: where all is stopped for that, the report says so.
        self._untold: list[Gone] = []

    def run(self, seconds: float | None, restore: str | None = None, fork: bool = False) -> Status | None:
        """Run until the time is over or somebody interrupts; return how things stood at the end.

        `restore`: from this snapshot on. It is asked for once, while there is nobody who would go on from another one.
        """
        # Whoever interrupts before all is started need not wait for anything.
        self._supervisor.start(lambda client: client.restore(restore, fork) if restore is not None else None)
        with interruptible() as interrupted:
            note(f"running; logs are in {self._supervisor.logs}, the API at http://{self._supervisor.client.api}")
            self._tell_others(self._supervisor.left, self._supervisor.listen)
            deadline = time.monotonic() + seconds if seconds is not None else None
            with self._watch:
                self._follow(interrupted, deadline)
            self._finish()
        return self._status

    def _tell_others(self, left: Sequence[str], listen: str) -> None:
        """Tell of those who are not started."""
        for name in left:
            note(f"{name} has left, and is not started; to join anew, start its node; its coordinator is {listen}")
        for name in self._programs:
            if name not in left:
                note(f"{name} is a program with its own loop: start it; its coordinator is {listen}")

    def _follow(self, interrupted: list[int], deadline: float | None) -> None:
        looked_s = 0.0
        while not interrupted and (deadline is None or time.monotonic() < deadline):
            for gone in self._supervisor.tick():
                if gone.code > 0:
                    self._untold.append(gone)
                else:
                    self._tell_gone(gone)
            if time.monotonic() - looked_s >= LOOK_EVERY_S:
                looked_s = time.monotonic()
                self._look()
                if self._status is not None and self._status.halted:
                    return
            time.sleep(TICK_S)

    def _tell_gone(self, gone: Gone) -> None:
        again = "" if gone.code == 0 else "; it is started again"
        self._watch.tell(f"{gone}{again}")

    def _look(self) -> None:
        try:
            self._status = self._supervisor.client.status()
        except TransportError:
            self._watch.tell("the coordinator does not answer; processes go on without it, and it is started again")
            return
        untold, self._untold = self._untold, []
        for gone in untold if not self._status.halted else ():
            self._tell_gone(gone)
        self._watch.show(self._status)
        for process in self._status.processes:
            if process.state == "missing":
                self._supervisor.needed(process.name)

    def _finish(self) -> None:
        """Take a last snapshot, so that nothing is undone when the system is started again, and stop."""
        client = self._supervisor.client
        try:
            self._status = client.status()
            if not self._status.halted:
                _tell_last(client.take(wait=True, timeout_s=LAST_SNAPSHOT_S))
        except (TransportError, RequestRefused) as error:
            _tell_none(str(error))
        with contextlib.suppress(TransportError):
            self._status = client.status()
        self._supervisor.stop()
        if self._status is not None:
            self._count_again(self._status)
            say(self._summary(self._status))

    def _count_again(self, status: Status) -> None:
        """Count what the store has in the end: snapshots may have been committed while everything was stopping."""
        with contextlib.suppress(StoreError):
            status.committed = len(Store.open(self._supervisor.store).state().committed)

    def _summary(self, status: Status) -> str:
        rollbacks = count(len(status.rollbacks), "rollback")
        complete = count(status.committed, "complete snapshot")
        return f"{complete} in the store, {status.aborted:,} aborted, {rollbacks}; everything has ended"


def _tell_last(taken: Taken) -> None:
    if taken.outcome == COMMITTED:
        note(f"last snapshot: {taken.id}, {taken.outcome}")
    else:
        _tell_none(f"{taken.id} was {taken.outcome}: {taken.reason}")


def _tell_none(why: str) -> None:
    undone = "started again, the system goes on from its newest one, and what came after that is undone"
    note(f"no last snapshot could be taken ({why}); {undone}")


@contextlib.contextmanager
def interruptible() -> Iterator[list[int]]:
    """Give a list that is not empty any more when somebody has interrupted; a second time ends at once."""
    seen: list[int] = []

    def note_signal(number: int, _: FrameType | None) -> None:
        if seen:
            raise KeyboardInterrupt
        seen.append(number)

    before: dict[int, Any] = {number: signal.signal(number, note_signal) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield seen
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
