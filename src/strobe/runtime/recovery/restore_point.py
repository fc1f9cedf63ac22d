"""Chooses the snapshot for a rollback: complete, verified and fitting (E9, R1).

A snapshot requested by name is chosen, or refused with the reason. Without a name, the choice is the newest restorable
snapshot of the current timeline: first those of the current epoch, then the one that this epoch was restored from and
those before it, and so on. Snapshots abandoned by a rollback are not on the timeline, and are not chosen.

A snapshot requested by name must also fit the current system: its topology (E9) and its programs (R3). The newest is
not checked for that. A process that is in it and has left since is needed again: going back to before it joined would
undo everything since, which nobody requested. If its programs do not fit, an older one would not fit either, or would
undo released output. The process then reports that, and the system is stopped.

Restoring below released output is refused (R2): sinks would release the same output again. Only a fork may do that,
since its output goes to another file.
"""

import copy
from collections.abc import Mapping
from itertools import chain, pairwise
from typing import NamedTuple

import msgspec

from strobe.errors import SnapshotError, StoreCorrupt
from strobe.process import Process, System
from strobe.protocol import LocalState, SnapshotId, View
from strobe.protocol.coordinator.messages import RestoreRefused, SnapshotChosen
from strobe.protocol.values.log_entries import EpochStart, Manifest
from strobe.runtime.recovery.fragment_loader import Unrestorable, fit_in_flight, fit_state
from strobe.runtime.recovery.topology import compare
from strobe.storage import LogState, Store
from strobe.storage.content.manifests import blobs_of
from strobe.storage.inspection.fast_proof import prove_stored
from strobe.storage.inspection.round_trip import round_trip
from strobe.storage.store.snapshot_names import LATEST
from strobe.user_code import RAISED, is_failure


class Topology(msgspec.Struct, frozen=True):
    """What can run here: the `views` that the system describes and that it has now.

    `joined` maps each running process to the view in which it joined; 0 for the very first view.
    """

    protocol: str
    views: tuple[View, ...]
    joined: dict[str, int] = {}

    def problem(self, manifest: Manifest, by_name: bool) -> str | None:
        """Return why a snapshot's topology does not fit; None if it fits, or if it was not requested by name."""
        if manifest.protocol != self.protocol:
            return f"was taken by {manifest.protocol}, and the system runs {self.protocol}"
        if not by_name:
            return None
        found = compare(manifest.view, *self.views)
        if found.missing_processes:
            return f"is of another topology: the system has no process {', '.join(sorted(found.missing_processes))}"
        other = [*found.missing_channels, *(recorded for recorded, _ in found.changed_channels)]
        unknown = sorted(f"{channel.id} ({channel.kind}, {channel.hash})" for channel in other)
        return f"is of another topology: the system has no channel {', '.join(unknown)}" if unknown else None


class Choice(msgspec.Struct, frozen=True):
    """The choice, and the reasons for passing over newer snapshots."""

    event: SnapshotChosen | RestoreRefused
    passed_over: tuple[str, ...] = ()


def timeline(state: LogState) -> list[str]:
    """Return the complete snapshots on the current timeline, newest first."""
    starts = state.starts
    by_epoch: dict[int, list[tuple[SnapshotId, str]]] = {}
    for name in reversed(state.committed):
        snapshot = SnapshotId.parse(name)
        by_epoch.setdefault(snapshot.epoch, []).append((snapshot, name))
    found: list[str] = []
    end: SnapshotId | None = None
    for epoch in ancestor_epochs(state.epoch, starts):
        found += [name for snapshot, name in by_epoch.get(epoch, []) if end is None or snapshot <= end]
        restored = starts[epoch].restored if epoch in starts else None
        end = SnapshotId.parse(restored) if restored is not None else None
    return found


def ancestor_epochs(epoch: int, starts: Mapping[int, EpochStart]) -> list[int]:
    """Return the current epoch and those it descends from, newest first."""
    found = [epoch]
    while (start := starts.get(found[-1])) is not None and start.restored is not None:
        found.append(SnapshotId.parse(start.restored).epoch)
    return found


def choose(
    store: Store,
    wanted: str | None,
    topology: Topology,
    fork: bool = False,
    system: System | None = None,
) -> Choice:
    """Return the snapshot to restore, or why there is none. StoreError: the store cannot be read now."""
    state = store.state()
    starts = state.starts
    candidates = timeline(state)
    if wanted == LATEST and candidates:
        wanted = candidates[0]  # never one that a rollback has abandoned
    if wanted is not None:
        try:
            wanted = store.resolve(wanted)
        except SnapshotError as error:
            return Choice(RestoreRefused(str(error)))
    elif not candidates:
        return Choice(SnapshotChosen(None, None))
    passed_over: list[str] = []
    for name in candidates if wanted is None else [wanted]:
        manifest = state.committed[name].manifest
        problem = topology.problem(manifest, by_name=wanted is not None)
        if problem is None and not fork:
            problem = _below_later(state, candidates, name) or _of_earlier_membership(manifest, topology.joined)
        if problem is None:
            problem = _unverified(store, name, manifest)
        if problem is None and name not in candidates and not fork:
            problem = _beside_fork(SnapshotId.parse(name).epoch, manifest, ancestor_epochs(state.epoch, starts), starts)
        if problem is None and wanted is not None and system is not None:
            problem = _unfit_reason(store, name, system)
        if problem is None:
            return Choice(SnapshotChosen(name, manifest.view), tuple(passed_over))
        passed_over.append(f"snapshot {name} {problem}")
    return Choice(RestoreRefused("; ".join(passed_over)))


def _below_later(state: LogState, candidates: list[str], name: str) -> str | None:
    """Return why this snapshot cannot be restored, given the output that later ones released (R2).

    The newest does not cover all of it: a process that left and joined again also has output from before. So each is
    compared with its predecessor too. A snapshot abandoned by a rollback had released no more than the restored one.
    """
    this = state.committed[name]
    behind = [state.committed[one] for one in candidates]  # newest first
    later = [one for one in behind if one.position > this.position]
    # Read one by one: there may be many, and each may be large.
    pairs = chain(
        pairwise(one.manifest for one in (this, *reversed(later))),
        ((this.manifest, newest.manifest) for newest in later[:1]),
    )
    found = (below_released(before, after) for before, after in pairs)
    return next((problem for problem in found if problem is not None), None)


class MembershipInterval(NamedTuple):
    """The sink positions of a process in a snapshot, and the view in which it had joined, to distinguish rejoins."""

    joined: int
    sinks: Mapping[str, int]

    @classmethod
    def of(cls, process: str, manifest: Manifest) -> "MembershipInterval | None":
        if process in manifest.processes:
            return cls(manifest.joined.get(process, 0), manifest.processes[process].sinks)
        gone = manifest.departed.get(process)
        return cls(gone.joined, gone.sinks) if gone is not None else None


def below_released(manifest: Manifest, newest: Manifest) -> str | None:
    """Return why the snapshot cannot be restored, given the output that `newest` has released (R2), or None."""
    for process in newest.departed | newest.processes:
        interval, later = MembershipInterval.of(process, manifest), MembershipInterval.of(process, newest)
        assert later is not None, "it is in the newest"
        is_same = interval is not None and interval.joined == later.joined
        covered = interval.sinks if interval is not None and is_same else {}
        for sink, position in later.sinks.items():
            more = position - covered.get(sink, 0)
            if more > 0:
                return (
                    f"lies below released output: sink {sink} of process {process} has released {more} more since; "
                    "restore a newer one, or fork, with output that goes elsewhere"
                )
    return None


def _of_earlier_membership(manifest: Manifest, joined: Mapping[str, int]) -> str | None:
    """Return why output cannot continue from the snapshot: its process has left since and joined again.

    A joining process has released nothing, so its output file is not the one with its earlier output.
    """
    for process, record in manifest.processes.items():
        at_cut = manifest.joined.get(process, 0)
        if joined.get(process, at_cut) != at_cut and any(record.sinks.values()):
            return (
                f"is of an earlier membership of process {process}, which has left since and joined again with "
                "its output elsewhere; restore a newer one, or fork"
            )
    return None


def _beside_fork(epoch: int, manifest: Manifest, behind: list[int], starts: Mapping[int, EpochStart]) -> str | None:
    """Return why output cannot continue from a snapshot that a fork abandoned: it continues in the fork's file."""
    forks = [one for one in behind if one > epoch and one in starts and starts[one].fork]
    sinks = sorted(f"{sink} of process {name}" for name, record in manifest.processes.items() for sink in record.sinks)
    if not forks or not sinks:
        return None
    return (
        f"was abandoned by the fork of epoch {forks[-1]}, in which the output of sink {sinks[0]} continues; "
        "fork again, with output that goes elsewhere"
    )


def _unverified(store: Store, name: str, manifest: Manifest) -> str | None:
    try:
        for ref in blobs_of(manifest):
            store.read_blob(ref)
        verdict = prove_stored(store, name, manifest)
    except (StoreCorrupt, SnapshotError) as error:
        return f"is corrupt: {error.problem}"
    if not verdict.holds:
        return "is inconsistent: " + "; ".join(str(finding) for finding in verdict.findings)
    return None


def _unfit_reason(store: Store, name: str, system: System) -> str | None:
    """Return why the programs of `system` cannot continue from the snapshot (R3)."""
    try:
        for process, fragment in store.load(name, checksums=False).fragments.items():
            fit_in_flight(name, process, fragment, system.decode_recorded)
            example = _example(system.processes.get(process))
            if example is not None and fragment.state is not None:
                state = fit_state(name, process, fragment.state, example)
                problem = _refusal(process, system.processes[process], fragment.state, state)
                if problem is not None:
                    return f"is refused by process {process}: {problem}"
    except Unrestorable as error:
        return f"is of another schema: {error.problem}"
    except (StoreCorrupt, SnapshotError) as error:  # it was removed after it was verified
        return f"cannot be read any more: {error.problem}"
    return None


def _refusal(name: str, process: Process, local: LocalState, state: object) -> str | None:
    """Return why a copy of `process` cannot restore `state`, decoded from `local`; None also if it cannot be copied."""
    try:
        twin = copy.deepcopy(process)
    except RAISED as error:  # the user's own objects
        if not is_failure(error):
            raise
        return None
    return round_trip(name, twin, local, state)


def _example(process: Process | None) -> object | None:
    """Return a state as `process` captures it; None if only its own program can capture one."""
    try:
        return process.capture() if process is not None else None
    except RAISED as error:  # the user's own code; the node that runs it reports the error
        if not is_failure(error):
            raise
        return None
