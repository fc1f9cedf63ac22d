"""The levels of verification that need the system itself: invariants and trial restore (S4, E9).

A trial restore performs all of a restore, short of running, on a throwaway copy of the system: topology and protocol
must be the snapshot's, every state must decode into the type that `capture()` returns, every message in flight must be
one of the system's, `restore()` is called, and `capture()` must then return what was restored.

The invariants are those that the system declares, and the value of its `conserved`, which must equal that of the oldest
snapshot that verifies.
"""

from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import msgspec

from strobe.causality.proof import Finding
from strobe.errors import UNREADABLE, SnapshotNotFound
from strobe.invariants import DeclaredInvariant, GlobalState
from strobe.process import Process, System
from strobe.protocol import LocalState, Snapshot
from strobe.protocol.process.first_view import first_view
from strobe.protocol.values.view import ChannelSpec
from strobe.runtime.recovery.topology import compare
from strobe.storage import Store
from strobe.storage.content.state_codec import (
    decode_captured,
    encoding_of,
    global_state,
    require_state,
    version_of,
)
from strobe.storage.inspection.round_trip import round_trip
from strobe.storage.inspection.verification import HOLDS, VIOLATED, Check, Level, StoreLevels, Verified
from strobe.user_code import RAISED, explain, is_failure

LoadSystem = Callable[[], System]
"""Returns the system with newly made processes, since a trial changes them."""


class DecodedSnapshot(msgspec.Struct):
    """A decoded snapshot, with the findings about what could not be decoded."""

    state: GlobalState
    findings: list[Finding]


class TrialLevels:
    """Verifies snapshots of one store up to any level."""

    def __init__(self, store: Store, levels: StoreLevels, load: LoadSystem) -> None:
        self._store = store
        self._levels = levels
        self._load = load
        self._oldest: tuple[str, Any] | None = None

    def verify(self, snapshot_id: str, level: Level) -> Verified:
        """Return the findings of `level` and all levels before it on a complete snapshot."""
        verified = self._levels.verify(snapshot_id, level)
        if Level.INVARIANTS in level.included and verified.holds:
            verified = verified.with_check(self._invariants(verified.id))
        if Level.RESTORE in level.included and verified.holds:
            verified = verified.with_check(self._restore(verified.id))
        return verified

    def _invariants(self, snapshot_id: str) -> Check:
        system = self._load()
        if system.conserved is None and not system.invariants:
            detail = "no invariant to check: the system declares neither `conserved` nor `invariants`"
            return Check(Level.INVARIANTS, HOLDS, detail)
        decoded = decode(system, self._store.load(snapshot_id, checksums=False))
        details, findings = [], list(decoded.findings)
        if not findings:
            if system.conserved is not None:
                detail, found = self._conservation(system, decoded, snapshot_id)
                details.append(detail)
                findings += found
            details += [one.name for one in system.invariants]
            findings += [finding for one in system.invariants for finding in _violations(one, decoded.state)]
        if findings:
            return Check(Level.INVARIANTS, VIOLATED, "what the system declares", tuple(findings))
        return Check(Level.INVARIANTS, HOLDS, "; ".join(details))

    def _conservation(self, system: System, decoded: DecodedSnapshot, snapshot_id: str) -> tuple[str, list[Finding]]:
        value, findings = conserved_value(system, decoded)
        oldest = self._oldest_value() if not findings else None
        if oldest is not None and oldest[1] != value:
            problem = f"is {value!r}, and was {oldest[1]!r} in {oldest[0]}, the oldest snapshot that verifies"
            findings = [Finding("invariant", "conserved", problem)]
        compared = f"as in {oldest[0]}" if oldest is not None and oldest[0] != snapshot_id else "the oldest there is"
        return f"conserved: {value!r} ({compared})", findings

    def _oldest_value(self) -> tuple[str, Any] | None:
        """Return the oldest snapshot that verifies, and its conserved value."""
        if self._oldest is None:
            self._oldest = next(self._values(), None)
        return self._oldest

    def _values(self) -> Iterator[tuple[str, Any]]:
        """Yield every snapshot that verifies, oldest first, with its value."""
        for name in list(self._store.state().committed):
            with suppress(SnapshotNotFound):  # it was removed meanwhile
                if self._levels.verify(name, Level.CAUSAL).holds:
                    system = self._load()
                    value, findings = conserved_value(system, decode(system, self._store.load(name, checksums=False)))
                    if not findings:
                        yield name, value

    def _restore(self, snapshot_id: str) -> Check:
        snapshot = self._store.load(snapshot_id, checksums=False)
        system = self._load()
        findings = tuple(trial_restore(system, snapshot))
        if findings:
            return Check(Level.RESTORE, VIOLATED, "trial restore", findings)
        messages = snapshot.in_flight_messages
        detail = f"restored {len(snapshot.fragments):,} processes, decoded {messages:,} in flight"
        migrated = ", ".join(_migrated(system, snapshot))
        if migrated:
            detail += f"; migrated the state of {migrated}"
        absent = [name for name in system.processes if name not in snapshot.view.processes]
        joining = f"; not in it, and would join as new: {', '.join(absent)}" if absent else ""
        return Check(Level.RESTORE, HOLDS, f"{detail}{joining}")


def conserved_value(system: System, decoded: DecodedSnapshot) -> tuple[Any, list[Finding]]:
    """Return the value of the system's `conserved` on a snapshot, or why it has none."""
    if decoded.findings:
        return None, decoded.findings
    try:
        return system.conserved_value(decoded.state.states, decoded.state.messages), []
    except RAISED as error:  # the user's own code
        if not is_failure(error):
            raise
        return None, [Finding("invariant", "conserved", f"fails: {explain(error)}")]


def _violations(invariant: DeclaredInvariant, state: GlobalState) -> Iterator[Finding]:
    """Yield why an invariant does not hold. One that names a departed process or channel says nothing."""
    if invariant.missing(state) is not None:
        return
    try:
        violation = invariant.violation(state)
    except RAISED as error:  # the user's own code
        if not is_failure(error):
            raise
        violation = f"fails: {explain(error)}"
    if violation is not None:
        yield Finding("invariant", invariant.name, violation)


def trial_restore(system: System, snapshot: Snapshot) -> Iterator[Finding]:
    """Restore `snapshot` into the processes of `system`, which are unusable afterwards; yield what is wrong."""
    yield from _topology(system, snapshot)
    decoded = decode(system, snapshot)
    yield from decoded.findings
    for name, state in decoded.state.states.items():
        local = snapshot.fragments[name].state
        assert local is not None, "it was decoded"
        problem = round_trip(name, system.processes[name], local, state)
        if problem is not None:
            yield Finding("restore", name, problem)


def decode(system: System, snapshot: Snapshot) -> DecodedSnapshot:
    """Decode every state and every message in flight that `system` has a process for."""
    states: dict[str, Any] = {}
    in_flight: dict[str, list[Any]] = {}
    findings: list[Finding] = []
    for name, fragment in snapshot.fragments.items():
        if name not in system.processes or fragment.state is None:
            continue
        try:
            states[name] = _decode_state(name, system.processes[name], fragment.state)
        except RAISED as error:  # capture() is the user's own code
            if not is_failure(error):
                raise
            problem = f"its state does not decode into what capture() returns: {explain(error)}"
            findings.append(Finding("state", name, problem))
        for channel, items in fragment.in_flight.items():
            messages = in_flight.setdefault(channel, [])
            for item in items:
                try:
                    messages += system.decode_recorded(item.frame.body)[item.consumed :]
                except UNREADABLE as error:
                    problem = f"the frame of message {item.frame.first_ordinal} cannot be decoded: {error}"
                    findings.append(Finding("message", channel, problem))
    return DecodedSnapshot(global_state(snapshot, states, in_flight), findings)


def _decode_state(name: str, process: Process, local: LocalState) -> Any:
    example = process.capture()
    require_state(name, example)
    if encoding_of(example) != local.encoding:
        raise TypeError(f"the snapshot has {local.encoding}, and capture() returns {type(example).__name__}")
    return decode_captured(example, local)


def _migrated(system: System, snapshot: Snapshot) -> Iterator[str]:
    """Yield each process whose state in `snapshot` is of an older version, with both versions."""
    for name, fragment in snapshot.fragments.items():
        if fragment.state is not None and name in system.processes:
            version = version_of(system.processes[name].capture())
            if version != fragment.state.version:
                yield f"{name} from version {fragment.state.version} to {version}"


def _topology(system: System, snapshot: Snapshot) -> Iterator[Finding]:
    """Report processes and channels that are missing or different, and channels unknown to the snapshot's processes."""
    if snapshot.protocol != system.protocol:
        problem = f"the snapshot was taken by {snapshot.protocol}, the system runs {system.protocol}"
        yield Finding("protocol", snapshot.protocol, problem)
    found = compare(snapshot.view, first_view(system))
    for name in found.missing_processes:
        yield Finding("topology", name, "this process is in the snapshot, and not in the system")
    for channel in found.missing_channels:
        yield Finding("topology", channel.id, "this channel is in the snapshot, and not in the system")
    for channel, other in found.changed_channels:
        yield Finding("topology", channel.id, f"is {_ends(channel)} in the snapshot, {_ends(other)} in the system")
    for channel in found.added_channels:
        yield Finding("topology", channel.id, "this channel is in the system, and not in the snapshot")


def _ends(channel: ChannelSpec) -> str:
    return f"{channel.kind} from {channel.source} to {channel.target}, hashed by {channel.hash}"
