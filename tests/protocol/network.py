"""An in-memory network of real protocol machines. The caller chooses every step.

FIFO channels are queues, unordered ones are bags. The coordinator's orders (record, abort, settled, relayed counts)
wait in one bag and arrive in any order. A message is `[serial, hops]`: its receiver sends another one while hops are
left, so that causality spreads. Every seventh message makes its receiver initiate a snapshot at once, even in the
middle of a frame.

Beside the machines, the network keeps a reference record: each send and receipt with its event, and how much had been
sent and received at each recording.
"""

from collections import Counter, defaultdict
from typing import Any

import msgspec
from tests.protocol.specification import Received, Sent

from strobe.protocol import (
    COORDINATOR,
    FIFO,
    PROTOCOLS,
    ChannelSpec,
    Fragment,
    Frame,
    InFlight,
    LocalState,
    Snapshot,
    SnapshotId,
    View,
    initiators,
)
from strobe.protocol.process.effects import (
    DeliverFrame,
    DropRecording,
    Effect,
    FinishFragment,
    RecordState,
    ReportSentCounts,
    SendFrame,
    SendMarker,
)
from strobe.protocol.process.events import (
    Breakpoint,
    Event,
    FrameReceived,
    Marker,
    MarkerReceived,
    MessagesSent,
    Restarted,
    SentCountRelayed,
    SnapshotAborted,
    SnapshotRequested,
    SnapshotsSettled,
)

INITIATES_EVERY = 7


class Network:
    """Processes, wires, and the reference record. Choices are numbers, taken modulo the number of options."""

    def __init__(self, view: View, protocol: str) -> None:
        self.view = view
        self.protocol = protocol
        self.machines = {process: PROTOCOLS[protocol](process, view) for process in view.processes}
        self.specs = {spec.id: spec for spec in view.channels}
        self.wires: dict[str, list[Frame | Marker]] = {spec.id: [] for spec in view.channels}
        # After a rollback: the recorded frames, which are delivered before anything from the wire.
        self.restored: dict[str, list[InFlight]] = {spec.id: [] for spec in view.channels}
        self.epoch = 1
        self.orders: list[tuple[str, Event]] = []
        self.serial = 0
        self.counter = 0
        self.begun: list[SnapshotId] = []
        self.aborted: set[SnapshotId] = set()
        self.captured: dict[tuple[SnapshotId, str], LocalState] = {}
        self.fragments: dict[SnapshotId, dict[str, Fragment]] = defaultdict(dict)
        # The reference record.
        self.position: Counter[str] = Counter()
        self.history: list[Sent | Received] = []
        self.sent: dict[str, list[int]] = defaultdict(list)
        self.received: dict[str, list[int]] = defaultdict(list)
        self.sent_at: dict[tuple[SnapshotId, str], int] = {}
        self.received_at: dict[tuple[SnapshotId, str], int] = {}

    # Choices

    def send(self, channel: int, messages: int) -> None:
        """Send one to three messages on one channel, in one event."""
        if self.specs:
            spec = self._pick(list(self.specs.values()), channel)
            self.position[spec.source] += 1
            self._put(spec, [2] * (1 + messages % 3))

    def take(self, wire: int, place: int) -> None:
        """Take the next item from a wire, or any item from an unordered one."""
        busy = [channel for channel, items in self.wires.items() if items or self.restored[channel]]
        if not busy:
            return
        spec = self.specs[self._pick(busy, wire)]
        if self.restored[spec.id]:
            first = self.restored[spec.id].pop(0)
            self.handle(spec.target, FrameReceived(spec.id, first.frame, first.consumed))
            return
        items = self.wires[spec.id]
        item = items.pop(0 if spec.kind == FIFO else place % len(items))
        event = FrameReceived(spec.id, item) if isinstance(item, Frame) else MarkerReceived(spec.id, item)
        self.handle(spec.target, event)

    def apply(self, order: int, _: int = 0) -> None:
        """Deliver any one of the coordinator's orders."""
        if self.orders:
            process, event = self.orders.pop(order % len(self.orders))
            self.handle(process, event)

    def begin(self, process: int, _: int = 0) -> None:
        """Begin a snapshot at one process and the initiators that the view needs; under Lai-Yang, at all processes."""
        self.counter += 1
        snapshot = SnapshotId(self.epoch, self.counter, COORDINATOR)
        if self.protocol == "lai-yang":
            self._ask(snapshot, self.view.processes)
        else:
            self._ask(snapshot, (self._pick(list(self.view.processes), process), *initiators(self.view)))

    def abort(self, which: int, _: int = 0) -> None:
        """Abort any snapshot that was ever begun; the rest of it arrives late."""
        if self.begun:
            self._abort(self._pick(self.begun, which))

    def restart(self, process: int, _: int = 0) -> None:
        """Crash and restart a process. Its recordings are lost, so their snapshots are aborted."""
        name = self._pick(list(self.view.processes), process)
        for snapshot in list(self.machines[name].open):
            self._abort(snapshot)
        self.handle(name, Restarted())

    def settle(self, process: int, _: int = 0) -> None:
        """Send a process the counter below which every snapshot has its outcome."""
        going_on = [snapshot.counter for snapshot in self.begun if not self._is_over(snapshot)]
        # Not above the next id of any process: the coordinator leaves that margin too.
        next_ones = [machine.next_id().counter for machine in self.machines.values()]
        floor = min(*going_on, *next_ones, self.counter + 1)
        self.orders.append((self._pick(list(self.view.processes), process), SnapshotsSettled(floor)))

    def calm_down(self) -> None:
        """Deliver everything that is in transit."""
        while self.orders or any(self.wires.values()) or any(self.restored.values()):
            self.apply(0)
            self.take(0, 0)

    # Results

    def complete(self) -> list[Snapshot]:
        return [
            Snapshot(snapshot, self.protocol, (), self.view, self.fragments[snapshot])
            for snapshot in self.begun
            if set(self.fragments[snapshot]) == set(self.view.processes)
        ]

    def cut(self, snapshot: Snapshot) -> dict[str, int]:
        return {process: fragment.state.position for process, fragment in snapshot.fragments.items() if fragment.state}

    def in_flight_at(self, snapshot: SnapshotId, channel: str) -> list[int]:
        """Return the messages sent before the sender's recording and not received before the receiver's."""
        sent = self.sent[channel][: self.sent_at[snapshot, channel]]
        received = self.received[channel][: self.received_at[snapshot, channel]]
        return [message for message in sent if message not in received]

    # Implementation

    def handle(self, process: str, event: Event) -> None:
        for effect in self.machines[process].handle(event):
            self._carry_out(process, effect)

    def _carry_out(self, process: str, effect: Effect) -> None:
        match effect:
            case RecordState(snapshot):
                self._record(process, snapshot)
            case SendFrame(channel, item) | SendMarker(channel, item):
                self.wires[channel].append(item)
            case DeliverFrame(channel, item, consumed):
                self._deliver(process, channel, item, consumed)
            case ReportSentCounts(snapshot, counts):
                for channel, count in counts.items():
                    self.orders.append((self.specs[channel].target, SentCountRelayed(snapshot, channel, count)))
            case FinishFragment(fragment):
                state = self.captured.pop((fragment.snapshot, process))
                self.fragments[fragment.snapshot][process] = msgspec.structs.replace(fragment, state=state)
            case DropRecording(snapshot):
                del self.captured[snapshot, process]
            case _:
                raise AssertionError(f"{process} was not expected to {effect}")

    def _record(self, process: str, snapshot: SnapshotId) -> None:
        assert (snapshot, process) not in self.captured, "recorded twice"
        assert process not in self.fragments[snapshot], "recorded again"
        self.captured[snapshot, process] = LocalState(self.position[process], "bytes", b"")
        for spec in self.view.outgoing(process):
            self.sent_at[snapshot, spec.id] = len(self.sent[spec.id])
        for spec in self.view.incoming(process):
            self.received_at[snapshot, spec.id] = len(self.received[spec.id])

    def _deliver(self, process: str, channel: str, frame: Frame, consumed: int) -> None:
        messages = msgspec.msgpack.decode(frame.body)
        for place, (serial, hops) in enumerate(messages[consumed:], consumed + 1):
            self.position[process] += 1
            self.history.append(Received(process, self.position[process], channel, serial))
            self.received[channel].append(serial)
            outgoing = self.view.outgoing(process)
            if hops and outgoing:
                self._put(self._pick(list(outgoing), serial), [hops - 1])
            if serial % INITIATES_EVERY == 0 and self.protocol == "chandy-lamport":
                self._initiate(process, Breakpoint(channel, place) if place < len(messages) else None)

    def _put(self, spec: ChannelSpec, hops: list[int]) -> None:
        messages = []
        for left in hops:
            self.serial += 1
            messages.append([self.serial, left])
            self.history.append(Sent(spec.source, self.position[spec.source], spec.id, self.serial))
            self.sent[spec.id].append(self.serial)
        self.handle(spec.source, MessagesSent(spec.id, len(messages), msgspec.msgpack.encode(messages)))

    def _initiate(self, process: str, inside: Breakpoint | None) -> None:
        snapshot = self.machines[process].next_id()
        self.counter = max(self.counter, snapshot.counter)
        self._ask(snapshot, initiators(self.view))
        self.handle(process, SnapshotRequested(snapshot, self.view.number, inside))

    def _ask(self, snapshot: SnapshotId, processes: tuple[str, ...]) -> None:
        self.begun.append(snapshot)
        self.orders += [(process, SnapshotRequested(snapshot, self.view.number)) for process in processes]

    def _abort(self, snapshot: SnapshotId) -> None:
        self.aborted.add(snapshot)
        self.orders += [(process, SnapshotAborted(snapshot)) for process in self.view.processes]

    def _is_over(self, snapshot: SnapshotId) -> bool:
        return snapshot in self.aborted or set(self.fragments[snapshot]) == set(self.view.processes)

    @staticmethod
    def _pick(things: list[Any], number: int) -> Any:
        return things[number % len(things)]
