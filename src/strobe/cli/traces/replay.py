"""Replays a trace of a user's system, and compares it with the snapshots of a store (R4)."""

from pathlib import Path
from typing import Any

import msgspec

from strobe.causality.trace import Trace
from strobe.cli.arguments.systems import open_system, running
from strobe.errors import UsageError
from strobe.process import System
from strobe.protocol import Snapshot
from strobe.runtime.connectors.system_file import ProgramWithOwnLoop
from strobe.simulation.replay import compare_along, states_along
from strobe.storage import Store
from strobe.storage.files.layout import HEADER

_DEPTH_MAX = 4  # a trace lies in STORE/run/trace/epoch-000001


class Replayed(msgspec.Struct, frozen=True):
    """The result of a replay: the number of events and states, and the states that differ from the recorded ones."""

    events: int
    states: int
    snapshots: list[str]
    problems: list[str]


def find_store(trace: str, given: str | None) -> Store | None:
    """Return the named store, or the one that contains the trace."""
    if given is not None:
        return Store.open(given)
    for place in Path(trace).absolute().parents[:_DEPTH_MAX]:
        if (place / HEADER).exists():
            return Store.open(place)
    return None


def complete_in(store: Store | None) -> frozenset[str]:
    """Return the ids of the snapshots that a replay can start from."""
    return frozenset(store.state().committed) if store is not None else frozenset()


def states_of(trace: Trace, system: str, store: Store | None) -> dict[str, list[Any]]:
    """Run `system` along the whole `trace`; return the states of its processes."""
    with open_system(system) as source, running():
        return states_along(lambda: _runnable(source.load()), trace, _begun(trace, store))


def replay(trace: Trace, system: str, store: Store | None) -> Replayed:
    """Run `system` along the whole `trace`; compare it with every complete snapshot recorded in it."""
    begun = _begun(trace, store)
    recorded = [name for name in trace.snapshots() if name in complete_in(store)]
    snapshots = [store.load(name) for name in recorded] if store is not None else []
    with open_system(system) as source, running():
        problems = compare_along(lambda: _runnable(source.load()), trace, snapshots, begun)
    events = sum(trace.event_count(process) - trace.first_count(process) for process in trace.processes)
    return Replayed(events, sum(len(snapshot.fragments) for snapshot in snapshots), recorded, problems)


def _runnable(system: System) -> System:
    """Return `system`; raise UsageError if one of its processes is not a class that can run here."""
    for name, process in system.processes.items():
        if isinstance(process, ProgramWithOwnLoop):
            raise UsageError(
                f"process {name} is a program with its own event loop and cannot be replayed; use trace verify"
            )
    return system


def _begun(trace: Trace, store: Store | None) -> Snapshot | None:
    """Return the snapshot that a trace starts from, if it does not start at the beginning."""
    start = trace.header.start.snapshot
    if start is not None and store is None:
        raise UsageError(f"{trace.name} begins at snapshot {start}; give the store of that snapshot with --store")
    return store.load(start) if store is not None and start is not None else None
