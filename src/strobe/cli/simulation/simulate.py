"""`strobe simulate`: runs a user's processes under faults, with every checker on."""

import shlex
import time
from collections import Counter
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Annotated, Protocol

import msgspec
import typer

from strobe.cli.arguments.start_check import check_all
from strobe.cli.arguments.stores import fresh_store
from strobe.cli.arguments.systems import open_system, running
from strobe.cli.shell.commands import JsonOption, new_app
from strobe.cli.shell.long_calls import long_calls_noted
from strobe.cli.shell.output import (
    ProgressLine,
    beside_document,
    count,
    note,
    print_json,
    print_line,
    print_wrapped,
    program,
)
from strobe.errors import UsageError
from strobe.process import System
from strobe.protocol import PROTOCOLS, Snapshot
from strobe.protocol.process.first_view import first_view
from strobe.self_check import Restores
from strobe.simulation.checkers import all_checkers
from strobe.simulation.checkers.base import Violated
from strobe.simulation.faults import KINDS, ROLLBACKS, Faults
from strobe.simulation.recorder import Recorder
from strobe.simulation.world import World

app = new_app()

_VIOLATIONS_PRINTED_MAX = 5
_SINGULAR = {
    "partitions": "partition",
    "process crashes": "process crash",
    "coordinator crashes": "coordinator crash",
    "leaves": "leave",
    "joins": "join",
    "snapshots by a process": "snapshot by a process",
}
_INDENT = " " * len("snapshots  ")


class Loads(Protocol):
    """Makes a system for each run, since a run changes it."""

    def load(self) -> System: ...


class SimulationPlan(msgspec.Struct, frozen=True):
    """The options of the command."""

    system: str
    seed: int
    seeds: int
    faults: str
    snapshots: int
    protocol: str | None
    store: str | None
    trace: str | None
    trace_level: str

    @property
    def seeds_text(self) -> str:
        return f"{self.seed}..{self.seed + self.seeds - 1}" if self.seeds > 1 else str(self.seed)

    def command(self, seed: int) -> str:
        """Return the command that reproduces the run of `seed` alone."""
        words = ["simulate", self.system, "--seed", str(seed), "--faults", self.faults]
        words += ["--snapshots", str(self.snapshots)]
        # With a store, the coordinator has other points at which it can crash, so the store is part of the run.
        words += [word for option in ("protocol", "store") for word in self._option(option)]
        return f"{program('strobe')} {shlex.join(words)}"

    def _option(self, name: str) -> list[str]:
        value = getattr(self, name)
        return [] if value is None else [f"--{name}", value]


class Tally(msgspec.Struct):
    """The totals of the runs so far."""

    faults: Faults | None = None
    runs: int = 0
    events: int = 0
    seconds: float = 0.0
    simulated_seconds: float = 0.0
    committed: int = 0
    aborted: int = 0
    retried: int = 0
    injected: Counter[str] = msgspec.field(default_factory=Counter)
    checkers: list[str] = []
    unchecked: list[str] = []
    violations: list[Violated] = []
    violated_seed: int | None = None

    def add(self, world: World, seconds: float) -> None:
        """Add a finished run."""
        self.runs += 1
        self.events += world.events
        self.seconds += seconds
        self.simulated_seconds += world.now_us / 1_000_000
        self.committed += len(world.committed)
        self.aborted += world.aborted
        self.retried += world.retried
        self.injected.update(world.injected)
        declares = world.system.conserved is not None or world.system.invariants
        self.unchecked = [] if declares else ["conservation"]
        self.checkers = [checker.name for checker in world.checkers if checker.applies_to(world)]
        if world.violations:
            self.violations = world.violations
            self.violated_seed = world.seed


@app.command()
def simulate(
    system: Annotated[str, typer.Argument(metavar="SYSTEM", help="file.py:name, module:name or system.toml.")],
    seed: Annotated[int, typer.Option(metavar="N", help="The same seed gives the same run, on every machine.")] = 1,
    seeds: Annotated[int, typer.Option(metavar="COUNT", min=1, help="Number of seeds to run, starting at --seed.")] = 1,
    faults: Annotated[
        str, typer.Option(metavar="KINDS", help="all, none, or a comma-separated list; see above.")
    ] = "all",
    snapshots: Annotated[int, typer.Option(metavar="N", min=0, help="Number of snapshots to take under faults.")] = 10,
    protocol: Annotated[
        str | None,
        typer.Option(metavar="NAME", help=f"Use this protocol instead of the system's: {', '.join(PROTOCOLS)}."),
    ] = None,
    store: Annotated[
        str | None,
        typer.Option(metavar="STORE", help="Keep the snapshots here; the store of an earlier simulation is replaced."),
    ] = None,
    trace: Annotated[str | None, typer.Option(metavar="FILE", help="Write every event to this file.")] = None,
    trace_level: Annotated[
        str, typer.Option(metavar="LEVEL", help="ordinals, or full: with payloads and times.")
    ] = "ordinals",
    json: JsonOption = False,
) -> int:
    """Run your processes in a simulator with faults, with every checker on; print how to repeat a failure.

    The kinds of faults are delays, partitions, crashes, coordinator, membership, initiators and rollbacks (crashes in
    which a process loses its state). With --trace, `all` has no rollbacks: a trace has one history.

    A call of your code that takes longer than 5 s is named on stderr, with its stack.

    Before the run, each process is checked: capture, encode, decode, restore into a copy, capture, compare. So are some
    of the snapshots that are taken. A mistake is reported with its file and line, and the exit code is 1.

    \b
    Example:
      strobe simulate examples/bank.py:bank --seed 7 --snapshots 100
    """
    plan = SimulationPlan(system, seed, seeds, faults, snapshots, protocol, store, trace, trace_level)
    if seeds > 1 and (store is not None or trace is not None):
        raise UsageError("--store and --trace keep one run; leave out --seeds, and give --seed")
    if trace is not None and not Path(trace).absolute().parent.is_dir():
        raise UsageError(f"--trace {trace}: its directory does not exist; create it, or choose another file")
    if trace is not None and Path(trace).is_dir():
        raise UsageError(f"--trace {trace}: this is a directory; give a file")
    if trace is not None:  # spelled out for the printed command, which runs without a trace
        plan = msgspec.structs.replace(plan, faults=_without_rollbacks(faults))
    parameters = Faults.parse(plan.faults, rollbacks=True)
    with open_system(system, protocol) as source, ProgressLine() as progress, beside_document(json):
        tally = run_all(plan, source, parameters, progress)
    if json:
        print_json(_document(plan, tally.faults or parameters, tally))
    else:
        _print(plan, tally)
    return 1 if tally.violations else 0


def run_all(plan: SimulationPlan, source: Loads, faults: Faults, progress: ProgressLine) -> Tally:
    """Run one seed after another, up to the first violation."""
    tally = Tally()
    for seed in range(plan.seed, plan.seed + plan.seeds):
        with running(plan.command(seed)):
            system = source.load()
            if not tally.runs:
                check_all(system)
            restores = Restores(system)
            if restores.left_out and ROLLBACKS not in plan.faults and faults.rollback_every_us:
                faults = msgspec.structs.replace(faults, rollback_every_us=0)
                note(f"no rollbacks among the faults: process {restores.left_out[0]!r} cannot be copied")
            tally.faults = faults
            world, recorder = _make_world(plan, system, faults, seed)
            if not tally.runs:
                print_wrapped(f"seed {plan.seeds_text}, faults: {faults.describe()}")
            _follow(plan, world, tally, progress, restores)
            started = time.perf_counter()
            with long_calls_noted(progress.note, partial(_name_of, world)):
                world.run(plan.snapshots)
        tally.add(world, time.perf_counter() - started)
        if recorder is not None and plan.trace is not None:
            _write_trace(plan.trace, recorder)
        if tally.violations:
            break
    return tally


def _without_rollbacks(faults: str) -> str:
    return ",".join(",".join(KINDS) if kind.strip() == "all" else kind for kind in faults.split(","))


def _make_world(plan: SimulationPlan, system: System, faults: Faults, seed: int) -> tuple[World, Recorder | None]:
    recorder = Recorder(first_view(system), seed, plan.trace_level, plan.system) if plan.trace is not None else None
    store = fresh_store(plan.store, "simulate") if plan.store is not None else None
    world = World(system, seed, faults=faults, store=store, recorder=recorder, checkers=all_checkers())
    return world, recorder


def _follow(plan: SimulationPlan, world: World, tally: Tally, progress: ProgressLine, restores: Restores) -> None:
    """Show each commit, and from time to time try to restore its states."""
    run = f"seed {world.seed} ({tally.runs + 1} of {plan.seeds}): " if plan.seeds > 1 else ""

    def committed(snapshot: Snapshot) -> None:
        number = len(world.committed)
        if number & (number - 1) == 0:  # the first, the second, the fourth...: cheap, with early and late states
            restores.check(snapshot)
        events = tally.events + world.events
        progress.show(f"{run}{count(len(world.committed), 'snapshot')} of {plan.snapshots}, {events:,} events")

    world.on_commit = committed


def _name_of(world: World, owner: object) -> str:
    """Return the name of the process that is this object, if any."""
    return next((name for name, node in world.nodes.items() if node.process is owner), "")


def _write_trace(file: str, recorder: Recorder) -> None:
    try:
        Path(file).write_bytes(recorder.text())
    except OSError as error:
        raise UsageError(f"cannot write the trace {file}: {error.strerror}; choose another --trace") from error
    if recorder.truncated:
        note(f"the trace {file} reached its maximum size, and has only the first part of the run")


def _print(plan: SimulationPlan, tally: Tally) -> None:
    rate = tally.events / tally.seconds if tally.seconds else 0.0
    runs = f" in {count(tally.runs, 'run')}" if plan.seeds > 1 else ""
    print_line(
        f"events     {tally.events:,}{runs}, {rate:,.0f} per second; {tally.simulated_seconds:,.3f} simulated seconds"
    )
    print_line(
        f"snapshots  {tally.committed:,} committed, {tally.aborted:,} aborted, {tally.retried:,} of these retried"
    )
    print_wrapped(f"faults     {_faults_text(tally.injected)}", _INDENT)
    if plan.store is not None:
        print_line(f"store      {plan.store}")
    if plan.trace is not None:
        print_line(f"trace      {plan.trace}")
    if tally.violations:
        _print_violations(plan, tally)
    else:
        print_wrapped(f"checkers   {len(tally.checkers)} passed: {', '.join(tally.checkers)}", _INDENT)
        if tally.unchecked:
            print_line(f"{_INDENT}conservation was not checked: the system has neither `conserved` nor `invariants`")


def _faults_text(injected: Mapping[str, int]) -> str:
    """Return how often each kind of fault happened."""
    order = sorted(injected, key=[*_SINGULAR, *injected].index)
    kinds = (f"{injected[kind]:,} {_SINGULAR.get(kind, kind) if injected[kind] == 1 else kind}" for kind in order)
    return ", ".join(kinds) or "none"


def _print_violations(plan: SimulationPlan, tally: Tally) -> None:
    assert tally.violated_seed is not None, "a violation belongs to a run"
    print_line(f"checkers   {count(len(tally.violations), 'violation')} with seed {tally.violated_seed}:")
    for violation in tally.violations[:_VIOLATIONS_PRINTED_MAX]:
        print_wrapped(f"  {violation}")
    if len(tally.violations) > _VIOLATIONS_PRINTED_MAX:
        print_line(f"  and {len(tally.violations) - _VIOLATIONS_PRINTED_MAX} more")
    print_line("run it again:")
    print_line(f"  {plan.command(tally.violated_seed)}")


def _document(plan: SimulationPlan, faults: Faults, tally: Tally) -> dict[str, object]:
    return {
        "system": plan.system,
        "seed": plan.seed,
        "seeds": plan.seeds,
        "faults": faults,
        "runs": tally.runs,
        "events": tally.events,
        "events_per_second": round(tally.events / tally.seconds) if tally.seconds else 0,
        "simulated_seconds": tally.simulated_seconds,
        "committed": tally.committed,
        "aborted": tally.aborted,
        "retried": tally.retried,
        "injected": tally.injected,
        "checkers": tally.checkers,
        "unchecked": tally.unchecked,
        "violations": tally.violations,
        "reproduce": plan.command(tally.violated_seed) if tally.violated_seed is not None else None,
        "store": plan.store,
        "trace": plan.trace,
    }
