"""A host of the coordinator's `Lifecycle` for tests: an in-memory log, a manual clock, and a list of all effects.

Entries are written and read back at once. With `slow=True` they wait in `host.waiting` until `host.write()`, as on a
host that writes its log asynchronously. Two hosts may share a log; then one of them may lose the race for a log
position.
"""

from typing import Any, TypeVar

import msgspec

from strobe.protocol import Lifecycle, Policy, SnapshotId, View
from strobe.protocol.coordinator.messages import (
    Append,
    AppendLost,
    CommitSnapshot,
    CoordinatorEffect,
    CoordinatorEvent,
    Drained,
    EntryLogged,
    FragmentArrived,
    Recovered,
    TimePassed,
)
from strobe.protocol.values.log_entries import Abort, Begin, Commit, Entry, EpochStart, Manifest, ViewChange

Order = TypeVar("Order")
MANIFEST = Manifest("chandy-lamport", (), View(0, (), ()), 1, 0, 0, {})


class CoordinatorHost:
    def __init__(
        self,
        view: View,
        policy: Policy | None = None,
        protocol: str = "chandy-lamport",
        *,
        log: list[Entry] | None = None,
        slow: bool = False,
        epoch: int = 1,
        outputs: tuple[str, ...] = (),
    ) -> None:
        self.first_view = view
        self.policy = policy or Policy()
        self.protocol = protocol
        self.log: list[Entry] = [] if log is None else log
        self.slow = slow
        self.now_us = 0
        self.first_epoch = epoch
        self.outputs = outputs
        self.lifecycle = Lifecycle(view, self.policy, protocol, epoch=epoch, outputs=outputs)
        self.position = 0
        self.waiting: list[Entry] = []
        self.orders: list[CoordinatorEffect] = []

    # Input

    def handle(self, *events: CoordinatorEvent) -> list[CoordinatorEffect]:
        """Pass events to the lifecycle; return all effects until it comes to rest."""
        before = len(self.orders)
        for event in events:
            self._feed(event)
        return self.orders[before:]

    def at(self, now_us: int) -> list[CoordinatorEffect]:
        """Let time pass."""
        self.now_us = now_us
        return self.handle(TimePassed())

    def fragments(self, snapshot: SnapshotId, *processes: str, view: int = 1) -> list[CoordinatorEffect]:
        return self.handle(*(FragmentArrived(snapshot, process, view) for process in processes))

    def drained(self, view: int, *processes: str) -> list[CoordinatorEffect]:
        return self.handle(*(Drained(process, view) for process in processes))

    def write(self) -> list[CoordinatorEffect]:
        """Write the waiting entries, in order."""
        before = len(self.orders)
        waiting, self.waiting = self.waiting, []
        for entry in waiting:
            self._write(entry)
        return self.orders[before:]

    def catch_up(self) -> list[CoordinatorEffect]:
        """Read the entries that others have written."""
        before = len(self.orders)
        while self.position < len(self.log):
            self.position += 1
            self._feed(self._logged(self.log[self.position - 1]))
        return self.orders[before:]

    def restart(self) -> list[CoordinatorEffect]:
        """Crash and restart with nothing but the log."""
        self.lifecycle = Lifecycle(
            self.first_view,
            self.policy,
            self.protocol,
            epoch=self.first_epoch,
            recovering=True,
            outputs=self.outputs,
        )
        self.position, self.waiting = 0, []
        silent = self.catch_up()
        assert silent == [], "nothing is ordered while the log is read back"
        return self.handle(Recovered())

    # Observations

    def begun(self) -> list[Begin]:
        return [entry for entry in self.log if isinstance(entry, Begin)]

    def last_begun(self) -> SnapshotId:
        return SnapshotId.parse(self.begun()[-1].snapshot)

    def outcomes(self) -> dict[str, Commit | Abort]:
        """Return the first outcome of each snapshot: it is the one that counts."""
        found: dict[str, Commit | Abort] = {}
        for entry in self.log:
            if isinstance(entry, Commit | Abort):
                found.setdefault(entry.snapshot, entry)
        return found

    def aborts(self) -> list[Abort]:
        return [entry for entry in self.log if isinstance(entry, Abort)]

    def views(self) -> list[View]:
        return [entry.view for entry in self.log if isinstance(entry, ViewChange)]

    def epochs(self) -> list[EpochStart]:
        return [entry for entry in self.log if isinstance(entry, EpochStart)]

    # Implementation

    def _feed(self, event: CoordinatorEvent) -> None:
        for effect in self.lifecycle.handle(event, self.now_us):
            self.orders.append(effect)
            if isinstance(effect, Append):
                self._append(effect.entry)
            elif isinstance(effect, CommitSnapshot):
                manifest = msgspec.structs.replace(
                    MANIFEST,
                    epoch=effect.snapshot.epoch,
                    view=effect.view,
                    departed=effect.departed,
                    joined=effect.joined,
                )
                self._append(Commit(str(effect.snapshot), manifest, self.now_us))

    def _logged(self, entry: Entry) -> EntryLogged:
        """Wrap an entry. For an epoch restored from a snapshot, add what the snapshot's manifest says about members."""
        outcome = self.outcomes().get(entry.restored or "") if isinstance(entry, EpochStart) else None
        if not isinstance(outcome, Commit):
            return EntryLogged(entry)
        return EntryLogged(entry, outcome.manifest.departed, outcome.manifest.joined)

    def _append(self, entry: Entry) -> None:
        if self.slow:
            self.waiting.append(entry)
        else:
            self._write(entry)

    def _write(self, entry: Entry) -> None:
        if self.position < len(self.log):
            self.catch_up()
            self._feed(AppendLost(entry))
            return
        self.log.append(entry)
        self.catch_up()


def fields_of(thing: Any) -> Any:
    """Return the fields of an object of this project as plain data, recursively."""
    if type(thing).__module__.startswith("strobe.") and not isinstance(thing, msgspec.Struct):
        return {name: fields_of(value) for name, value in vars(thing).items()}
    return {key: fields_of(value) for key, value in thing.items()} if isinstance(thing, dict) else thing


def those(effects: list[CoordinatorEffect], kind: type[Order]) -> list[Order]:
    """Return the effects of one kind."""
    return [effect for effect in effects if isinstance(effect, kind)]


def to(effects: list[Any], process: str) -> list[Any]:
    """Return the effects for one process."""
    return [effect for effect in effects if getattr(effect, "process", None) == process]


def committing(effects: list[CoordinatorEffect]) -> list[SnapshotId]:
    """Return the snapshots whose commit was ordered."""
    return [order.snapshot for order in those(effects, CommitSnapshot)]
