"""Replays a trace of a user's system, and compares it with the snapshots of a store (R4)."""

from pathlib import Path
from typing import Any

import msgspec

from strobe.causality.trace import Trace
from strobe.cli.arguments.systems import open_system
from strobe.cli.shell.user_failures import running
from strobe.errors import UsageError
from strobe.process import System
from strobe.protocol import Snapshot
from strobe.runtime.connectors.system_file import ProgramWithOwnLoop
from strobe.simulation.replay import compare_along, states_along
from strobe.storage import Store
from strobe.storage.files.layout import HEADER

_DEPTH_MAX = 4  # a trace lies in STORE/run/trace/epoch-000001


class Replayed(msgspec.Struct, frozen=True):
    """What a replay has found: how many events and states, and which of the states are not as recorded."""

    events: int
    states: int
    snapshots: list[str]
    problems: list[str]


def find_store(trace: str, given: str | None) -> Store | None:
    """Return the store that was named, or else the one that the trace lies in."""
    if given is not None:
        return Store.open(given)
    for place in Path(trace).absolute().parents[:_DEPTH_MAX]:
        if (place / HEADER).exists():
            return Store.open(place)
    return None


def complete_in(store: Store | None) -> frozenset[str]:
    """Return the ids of the snapshots that can be replayed from."""
    return frozenset(store.state().committed) if store is not None else frozenset()


def states_of(trace: Trace, system: str, store: Store | None) -> dict[str, list[Any]]:
    """Run `system` along all of `trace`; return the states that its processes were in."""
    with open_system(system) as source, running():
        return states_along(lambda: _runnable(source.load()), trace, _begun(trace, store))


def replay(trace: Trace, system: str, store: Store | None) -> Replayed:
    """Run `system` along all of `trace`; compare with every complete snapshot that is recorded in it."""
    begun = _begun(trace, store)
    recorded = [name for name in trace.snapshots() if name in complete_in(store)]
    snapshots = [store.load(name) for name in recorded] if store is not None else []
    with open_system(system) as source, running():
        problems = compare_along(lambda: _runnable(source.load()), trace, snapshots, begun)
    events = sum(trace.event_count(process) - trace.first_count(process) for process in trace.processes)
    return Replayed(events, sum(len(snapshot.fragments) for snapshot in snapshots), recorded, problems)


def _runnable(system: System) -> System:
    """Return `system`; raise UsageError where a process of it is no class that could be run here."""
    for name, process in system.processes.items():
        if isinstance(process, ProgramWithOwnLoop):
            raise UsageError(
                f"process {name} is a program with its own event loop and cannot be replayed; use trace verify"
            )
    return system


def _begun(trace: Trace, store: Store | None) -> Snapshot | None:
    """Return the snapshot that a trace begins at, if it does not begin at the beginning."""
    start = trace.header.start.snapshot
    if start is not None and store is None:
        raise UsageError(f"{trace.name} begins at snapshot {start}; give the store of that snapshot with --store")
    return store.load(start) if store is not None and start is not None else None
