"""Drives real machines and a real coordinator lifecycle around an in-memory log, from one random stream.

Channels are FIFO queues, or bags if they are unordered; links to and from the coordinator are queues. Messages are
empty, since only their counts matter. The coordinator can crash after any log entry: `moments` has a copy of the whole
cluster for each entry, taken right after the entry was written and before anyone read it.
"""

import copy
import random
from collections import defaultdict
from typing import Any

from strobe.causality.proof import verify
from strobe.protocol import (
    FIFO,
    PROTOCOLS,
    ChannelSpec,
    Fragment,
    Frame,
    Lifecycle,
    Policy,
    Snapshot,
    SnapshotId,
    View,
)
from strobe.protocol.coordinator.messages import (
    Append,
    CommitSnapshot,
    CoordinatorEvent,
    Dismiss,
    Drained,
    EntryLogged,
    FragmentArrived,
    InstallView,
    JoinWanted,
    LeaveWanted,
    ProcessFailed,
    ProcessReturned,
    Recovered,
    RelaySentCount,
    ReportOutcome,
    ReportSettled,
    RequestRecording,
    SentCountsArrived,
    SnapshotStarted,
    SnapshotWanted,
    TimePassed,
    WakeAt,
)
from strobe.protocol.process.effects import (
    DeliverFrame,
    FinishFragment,
    PrepareDeparture,
    RecordState,
    ReportDrained,
    ReportSentCounts,
    SendFrame,
    SendMarker,
    SendView,
)
from strobe.protocol.process.events import (
    DepartureReady,
    Event,
    FrameReceived,
    MarkerReceived,
    MessagesSent,
    Restarted,
    SentCountRelayed,
    SnapshotAborted,
    SnapshotRequested,
    SnapshotsSettled,
    ViewInstalled,
    ViewReceived,
)
from strobe.protocol.values.log_entries import Begin, Commit, Entry, Manifest, ViewChange

POLICY = Policy(timeout_us=1000, backoff_us=100, attempts_max=2, overlapping_max=2)
GUEST = "x"

CHANCES = {
    "_arrive": 30,
    "_report": 30,
    "_obey": 30,
    "_send": 12,
    "_want": 5,
    "_initiate": 3,
    "_pass_time": 5,
    "_crash": 3,
    "_change": 1,
}


class Cluster:
    def __init__(self, view: View, protocol: str, seed: int) -> None:
        self.first_view = view
        self.protocol = protocol
        self.random = random.Random(seed)
        self.now_us = 0
        self.wake_at_us: int | None = None
        self.log: list[Entry] = []
        self.moments: list[Cluster] = []
        self.watched = True
        self.machines = {name: PROTOCOLS[protocol](name, view) for name in view.processes}
        self.kept: dict[tuple[str, SnapshotId], Fragment] = {}
        self.down: set[str] = set()
        self.specs = {spec.id: spec for spec in view.channels}
        self.views = {view.number: view}
        self.wires: dict[str, list[Any]] = {spec.id: [] for spec in view.channels}
        self.orders: dict[str, list[Any]] = defaultdict(list)
        self.reports: dict[str, list[Any]] = defaultdict(list)
        self.verdicts: dict[str, str] = {}
        self._start_coordinator()

    # The coordinator

    def lose_coordinator(self) -> None:
        """Crash and restart the coordinator: reports in transit to it are lost, orders in transit from it are not."""
        self.reports.clear()
        self._start_coordinator()

    def _start_coordinator(self) -> None:
        self.lifecycle = Lifecycle(self.first_view, POLICY, self.protocol, recovering=True)
        self.fragments: dict[SnapshotId, dict[str, Fragment]] = defaultdict(dict)
        self.position = 0
        self.wake_at_us = None
        self._read()
        self._handle(Recovered())

    def _handle(self, event: CoordinatorEvent) -> None:
        for effect in self.lifecycle.handle(event, self.now_us):
            match effect:
                case Append(entry):
                    self._append(entry)
                case CommitSnapshot(snapshot, begin):
                    self._commit(snapshot, begin)
                case WakeAt(at_us):
                    self.wake_at_us = at_us if self.wake_at_us is None else min(self.wake_at_us, at_us)
                case _:
                    self.orders[effect.process].append(effect)

    def _append(self, entry: Entry) -> None:
        self.log.append(entry)
        if self.watched:
            self.watched, moments, self.moments = False, self.moments, []
            moments.append(copy.deepcopy(self))
            self.watched, self.moments = True, moments
        self._read()

    def _read(self) -> None:
        while self.position < len(self.log):
            entry = self.log[self.position]
            self.position += 1
            if isinstance(entry, ViewChange) and entry.view.number not in self.views:
                self._open_wires(entry.view)
            self._handle(EntryLogged(entry))

    def _open_wires(self, view: View) -> None:
        self.views[view.number] = view
        for spec in view.channels:
            if self.specs.get(spec.id) != spec:
                # A new incarnation is a new connection: nothing arrives on it from the old one.
                self.specs[spec.id] = spec
                self.wires[spec.id] = []

    def _commit(self, snapshot: SnapshotId, begin: Begin) -> None:
        view = self.views[begin.view]
        whole = Snapshot(snapshot, self.protocol, begin.initiators, view, self.fragments.pop(snapshot))
        self.verdicts[str(snapshot)] = str(verify(whole))
        self._append(Commit(str(snapshot), Manifest(self.protocol, (), view, 1, 0, 0, {}), self.now_us))

    # Steps

    def step(self) -> None:
        """Take one randomly chosen step."""
        names = list(CHANCES)
        getattr(self, self.random.choices(names, [CHANCES[name] for name in names])[0])()

    def calm_down(self) -> None:
        """Deliver everything and let time pass until nothing is left to do."""
        for name in list(self.down):
            self._restart(name)
        for _ in range(10_000):
            if not (self._arrive() or self._report() or self._obey()):
                if self.wake_at_us is None:
                    return
                self.now_us = max(self.now_us, self.wake_at_us)
                self.wake_at_us = None
                self._handle(TimePassed())
        raise AssertionError("it never comes to rest")

    def _pick(self, things: list[Any]) -> Any:
        return self.random.choice(sorted(things)) if things else None

    def _present(self) -> list[str]:
        return [name for name, machine in self.machines.items() if machine.view.number and name not in self.down]

    def _arrive(self) -> bool:
        present, specs = self._present(), self.specs
        channel = self._pick([name for name, items in self.wires.items() if items and specs[name].target in present])
        if channel is None:
            return False
        items = self.wires[channel]
        item = items.pop(0 if specs[channel].kind == FIFO else self.random.randrange(len(items)))
        self._deliver(specs[channel].target, FrameReceived(channel, item) if isinstance(item, Frame) else item)
        return True

    def _report(self) -> bool:
        name = self._pick([name for name, items in self.reports.items() if items])
        if name is None:
            return False
        report = self.reports[name].pop(0)
        if isinstance(report, Fragment):
            self.fragments[report.snapshot][name] = report
            report = FragmentArrived(report.snapshot, name, report.view)
        self._handle(report)
        return True

    def _obey(self) -> bool:
        name = self._pick([name for name, items in self.orders.items() if items])
        if name is None:
            return False
        order = self.orders[name].pop(0)
        if name not in self.machines and isinstance(order, ReportSettled) and name in self.lifecycle.view.processes:
            self.machines[name] = PROTOCOLS[self.protocol](name, View(0, (name,), ()))
        if name in self.machines and name not in self.down:
            self._carry_order(name, order)
        return True

    def _carry_order(self, name: str, order: Any) -> None:
        match order:
            case RequestRecording(_, snapshot, view):
                if (name, snapshot) in self.kept:
                    self.reports[name].append(self.kept[name, snapshot])
                else:
                    self._deliver(name, SnapshotRequested(snapshot, view))
            case RelaySentCount(_, snapshot, channel, count):
                self._deliver(name, SentCountRelayed(snapshot, channel, count))
            case ReportOutcome(_, snapshot, committed):
                self.kept.pop((name, snapshot), None)
                if not committed:
                    self._deliver(name, SnapshotAborted(snapshot))
            case ReportSettled(_, counter):
                self._deliver(name, SnapshotsSettled(counter))
                for known in [known for known in self.kept if known[0] == name and known[1].counter < counter]:
                    del self.kept[known]
            case InstallView(_, view):
                self._deliver(name, ViewInstalled(view))
            case Dismiss():
                del self.machines[name]

    def _send(self) -> None:
        name = self._pick(self._present())
        channel = self._pick(list(self.machines[name].outgoing)) if name else None
        if channel:
            self._deliver(name, MessagesSent(channel, 1, b"\x91\xc0"))

    def _want(self) -> None:
        self._handle(SnapshotWanted())

    def _initiate(self) -> None:
        name = self._pick(self._present())
        if name and self.protocol == "chandy-lamport" and name in self.machines[name].view.processes:
            snapshot, view = self.machines[name].next_id(), self.machines[name].view.number
            self.reports[name].append(SnapshotStarted(snapshot, name, view))
            self._deliver(name, SnapshotRequested(snapshot, view))

    def _pass_time(self) -> None:
        self.now_us += self.random.choice((10, 100, 600))
        self._handle(TimePassed())

    def _crash(self) -> None:
        """Crash a process, or restart the one that is down."""
        if self.down:
            self._restart(self._pick(list(self.down)))
        elif (name := self._pick(self._present())) is not None:
            self.down.add(name)
            for known in [known for known in self.kept if known[0] == name]:
                del self.kept[known]

    def _restart(self, name: str) -> None:
        self.down.discard(name)
        self._deliver(name, Restarted())
        self.reports[name] += [ProcessFailed(name), ProcessReturned(name)]

    def _change(self) -> None:
        """Let the guest join, or leave."""
        if GUEST in self.lifecycle.view.processes:
            self._handle(LeaveWanted(GUEST))
        elif GUEST not in self.machines:
            host = self.first_view.processes[0]
            kind = self.first_view.channels[0].kind
            ends = ((host, GUEST), (GUEST, host))
            self._handle(JoinWanted(GUEST, tuple(ChannelSpec(f"{a}{b}", a, b, kind) for a, b in ends)))

    # The processes

    def _deliver(self, name: str, event: Event) -> None:
        for effect in self.machines[name].handle(event):
            match effect:
                case SendFrame(channel, frame):
                    self.wires[channel].append(frame)
                case SendMarker(channel, marker):
                    self.wires[channel].append(MarkerReceived(channel, marker))
                case SendView(channel, view, count):
                    self.wires[channel].append(ViewReceived(channel, view, count))
                case FinishFragment(fragment):
                    self.kept[name, fragment.snapshot] = fragment
                    self.reports[name].append(fragment)
                case ReportSentCounts(snapshot, counts):
                    self.reports[name].append(SentCountsArrived(snapshot, name, counts))
                case ReportDrained(view):
                    self.reports[name].append(Drained(name, view))
                case PrepareDeparture():
                    self._deliver(name, DepartureReady())
                case DeliverFrame() | RecordState() | _:
                    pass
