"""The state space of a scenario: the possible actions in a state, and the states they lead to.

A global state is a tuple of small numbers: one per process, one per channel (if barriers overtake, also one for the
queue at its sender), one for the pending orders of each process (delivered in order), one for the fragments handed
over, one for whether the crash has happened. Each number stands for an interned value. Reported counts reach the
coordinator at once and are relayed from there: any delay is in the orders.

The protocol is pure: what a process does depends only on its own state and the event. So each such pair is run once
through `handle` of the real class, and looked up afterwards. That makes it possible to visit millions of global states.
"""

from collections.abc import Hashable, Iterable, Iterator
from typing import Any

import msgspec

from strobe.errors import ProtocolViolation
from strobe.protocol import COORDINATOR, FIFO, PROTOCOLS, LaiYang, SnapshotId, View
from strobe.protocol.process.effects import DeliverFrame
from strobe.protocol.process.events import (
    AlignmentTimedOut,
    BarrierArrived,
    Event,
    FrameReceived,
    MessagesSent,
    Restarted,
    SnapshotAborted,
    SnapshotRequested,
)
from strobe.simulation.explorer.barrier_queues import deliverable, overtaking
from strobe.simulation.explorer.commuting import ample_steps
from strobe.simulation.explorer.machines import canonical, copy_of
from strobe.simulation.explorer.reaction import Reaction
from strobe.simulation.explorer.rollback import rolled_back
from strobe.simulation.explorer.scenarios import Scenario
from strobe.simulation.explorer.states import Action, Global, Interned, Local, LocalStep


class Space:
    """All possible actions of a scenario.

    With `merge` off, equal states of a process are kept apart and every event is run again. With `reduce` off,
    commuting steps are also tried in every order. Both are slow, and exist for comparison.
    """

    def __init__(
        self, scenario: Scenario, protocol_class: Any = None, *, merge: bool = True, reduce: bool = True
    ) -> None:
        self.scenario = scenario
        self.merge = merge
        self.reduce = reduce
        self.protocol_class = protocol_class or PROTOCOLS[scenario.protocol]
        view = scenario.view
        self.processes = view.processes
        self.channels = tuple(spec.id for spec in view.channels)
        self.unordered = frozenset(spec.id for spec in view.channels if spec.kind != FIFO or scenario.reorder)
        self.targets = tuple(self.processes.index(spec.target) for spec in view.channels)
        self.ids = _snapshot_ids(scenario)
        self.locals = Interned()
        self.contents = Interned()
        self.items = Interned()
        self.collections = Interned()
        self.fragments = Interned()
        self.handles = 0
        self._steps: dict[tuple[int, Any], LocalStep] = {}
        self._moves: dict[tuple[int, int], tuple[tuple[Any, int, bool], ...]] = {}
        # By process, its state and the fragments handed over: whether it has recorded everything.
        self.recorded: dict[tuple[int, int, int], bool] = {}
        self.first_channel = len(self.processes)
        # If barriers overtake, messages waiting at senders are separate from those in flight.
        self.overtaking = self.protocol_class.overtakes
        self.outbox_at = self.first_channel + len(self.channels)
        self.control_at = self.outbox_at + (len(self.channels) if self.overtaking else 0)

    def start(self) -> Global:
        """Return the initial state."""
        numbers = [self.local_number(self.fresh(process, 1)) for process in self.processes]
        empty = self.contents.number(())
        none = self.collections.number(())
        queues = self.control_at - self.first_channel + len(self.processes)
        state = (*numbers, *([empty] * queues), none, 0)
        return self.order(state, self.requests(range(len(self.scenario.snapshots)), 0))

    def view_in(self, epoch: int) -> View:
        """Return the view of an epoch; a rollback gives it a new number."""
        return msgspec.structs.replace(self.scenario.view, number=epoch)

    def fresh(self, process: str, epoch: int) -> Local:
        """Return a process before its start."""
        view = self.view_in(epoch)
        sent = {spec.id: 0 for spec in view.outgoing(process)}
        received = {spec.id: frozenset[int]() for spec in view.incoming(process)}
        return Local(self.protocol_class(process, view, epoch), sent, received, {})

    def successors(self, state: Global) -> Iterator[tuple[Action, Global]]:
        """Yield every possible action in `state`, with its resulting state."""
        first = ample_steps(self, state) if self.reduce else []
        if first:
            yield from first
            return
        for place in range(len(self.processes)):
            yield from self.sends(state, place)
        yield from self.deliveries(state)
        yield from self._controls(state)
        if self.overtaking:
            yield from self.forwards(state)
            yield from self.timeouts(state)
        if self.scenario.crash and state[-1] == 0:
            yield from self._crashes(state)
        if self.scenario.rollback and state[-1] == 0:
            last = max((snapshot for snapshot, _ in self.complete(state)), default=None)
            yield Action("rollback", self.processes[0], event=last), rolled_back(self, state)

    # Possible actions

    def sends(self, state: Global, place: int) -> Iterator[tuple[Action, Global]]:
        local = self.locals.values[state[place]]
        if sum(local.sent.values()) < self.scenario.messages:
            for channel in local.sent:
                step = self._step(state[place], ("send", channel))
                yield Action("send", self.processes[place], channel), self._apply(state, place, step)

    def deliveries(self, state: Global) -> Iterator[tuple[Action, Global]]:
        for number, target in enumerate(self.targets):
            at = self.first_channel + number
            held = self.channels[number] in self.locals.values[state[target]].held
            for item, rest, waits in self._deliverable(number, state[at]):
                if held and waits:
                    continue
                step = self._step(state[target], item)
                after = (*state[:at], rest, *state[at + 1 :])
                yield (
                    Action("deliver", self.processes[target], self.channels[number], item),
                    self._apply(after, target, step),
                )

    def _deliverable(self, channel: int, content: int) -> tuple[tuple[Any, int, bool], ...]:
        """Return what a channel can deliver next, each with the remaining queue, and whether it may be held back."""
        known = self._moves.get((channel, content))
        if known is None:
            queue = self.contents.values[content]
            known = self._with_barriers(queue) if self.overtaking else self._in_order(channel, queue)
            self._moves[channel, content] = known
        return known

    def _in_order(self, channel: int, queue: tuple[int, ...]) -> tuple[tuple[Any, int, bool], ...]:
        places = range(len(queue)) if self.channels[channel] in self.unordered else range(min(1, len(queue)))
        return tuple(
            (self.items.values[queue[place]], self.contents.number((*queue[:place], *queue[place + 1 :])), True)
            for place in places
        )

    def _with_barriers(self, queue: tuple[int, ...]) -> tuple[tuple[Any, int, bool], ...]:
        """Return the same if barriers need not wait for their turn."""
        number = self.items.number
        return tuple(
            (event, self.contents.number(tuple(map(number, rest))), waits)
            for event, rest, waits in deliverable(tuple(self.items.values[item] for item in queue))
        )

    def forwards(self, state: Global) -> Iterator[tuple[Action, Global]]:
        """Send the first item waiting at the sender of each channel."""
        for number, spec in enumerate(self.scenario.view.channels):
            waiting = self.contents.values[state[self.outbox_at + number]]
            if waiting:
                after = list(state)
                after[self.outbox_at + number] = self.contents.number(waiting[1:])
                at = self.first_channel + number
                after[at] = self.contents.number((*self.contents.values[after[at]], waiting[0]))
                yield Action("forward", spec.source, spec.id), tuple(after)

    def timeouts(self, state: Global) -> Iterator[tuple[Action, Global]]:
        for place, process in enumerate(self.processes):
            for snapshot in self.locals.values[state[place]].timers:
                event = AlignmentTimedOut(snapshot)
                yield (
                    Action("timeout", process, event=event),
                    self._apply(state, place, self._step(state[place], event)),
                )

    def _controls(self, state: Global) -> Iterator[tuple[Action, Global]]:
        for place in range(len(self.processes)):
            if self.contents.values[state[self.control_at + place]]:
                yield self.control(state, place)

    def control(self, state: Global, place: int) -> tuple[Action, Global]:
        """Give a process the first of its orders."""
        at = self.control_at + place
        queue = self.contents.values[state[at]]
        event = self.items.values[queue[0]]
        after = (*state[:at], self.contents.number(queue[1:]), *state[at + 1 :])
        action = Action("control", self.processes[place], event=event)
        return action, self._apply(after, place, self._step(state[place], event))

    def _crashes(self, state: Global) -> Iterator[tuple[Action, Global]]:
        """Crash each process in turn: snapshots it has not handed over are aborted, and retried under a new id."""
        handed = dict(self.collections.values[state[-2]])
        for place, process in enumerate(self.processes):
            to_abort = [
                number for number in range(len(self.scenario.snapshots)) if self.slot(number, place) not in handed
            ]
            orders: list[tuple[int, Event]] = [
                (other, SnapshotAborted(self.ids[number]))
                for number in to_abort
                for other in range(len(self.processes))
            ]
            orders += self.requests(to_abort, len(self.scenario.snapshots))
            after = (*self.order(state, orders)[:-1], 1 + sum(1 << number for number in to_abort) * 2)
            yield Action("crash", process), self._apply(after, place, self._step(state[place], Restarted()))

    def order(self, state: Global, orders: list[tuple[int, Event]]) -> Global:
        """Append orders, each to the queue of its process."""
        after = list(state)
        for place, event in orders:
            at = self.control_at + place
            after[at] = self.contents.number((*self.contents.values[after[at]], self.items.number(event)))
        return tuple(after)

    def requests(self, numbers: Iterable[int], offset: int) -> list[tuple[int, Event]]:
        everyone = self.scenario.protocol == LaiYang.name
        return [
            (place, SnapshotRequested(self.ids[number + offset], self.ids[number + offset].epoch))
            for number in numbers
            for place, process in enumerate(self.processes)
            if everyone or process in self.scenario.snapshots[number]
        ]

    # Resulting states

    def _apply(self, state: Global, place: int, step: LocalStep) -> Global:
        after = list(state)
        after[place] = step.local
        for channel, item in step.puts:
            at = self.first_channel + channel
            if self.overtaking:
                at, item = self._behind_or_ahead(after, channel, item)
            queue = (*self.contents.values[after[at]], item)
            after[at] = self.contents.number(self.arranged(self.channels[channel], queue))
        for target, item in step.orders:
            at = self.control_at + target
            after[at] = self.contents.number((*self.contents.values[after[at]], item))
        if step.fragments:
            handed = tuple(sorted((*self.collections.values[after[-2]], *step.fragments)))
            after[-2] = self.collections.number(handed)
        return tuple(after)

    def _behind_or_ahead(self, state: list[int], channel: int, item: int) -> tuple[int, int]:
        """Return where an item put on a channel goes: a barrier goes ahead of waiting items, with copies of them."""
        barrier = self.items.values[item]
        if not isinstance(barrier, BarrierArrived):
            return self.outbox_at + channel, item
        waiting = self.contents.values[state[self.outbox_at + channel]]
        ahead = overtaking(barrier, tuple(self.items.values[one] for one in waiting))
        return self.first_channel + channel, self.items.number(ahead)

    def arranged(self, channel: str, queue: tuple[int, ...]) -> tuple[int, ...]:
        """Return the contents of a channel in canonical order, if the channel is unordered."""
        return tuple(sorted(queue)) if channel in self.unordered else queue

    def _step(self, local: int, event: Any) -> LocalStep:
        known = self._steps.get((local, event)) if self.merge else None
        if known is None:
            known = self._steps[local, event] = self._run(self.locals.values[local], event)
        return known

    def _run(self, before: Local, event: Any) -> LocalStep:
        """Run one event through the real protocol class."""
        self.handles += 1
        local = msgspec.structs.replace(
            before,
            machine=copy_of(before.machine),
            sent=dict(before.sent),
            received=dict(before.received),
            captured=dict(before.captured),
        )
        outcome = Reaction(self, local)
        if isinstance(event, tuple):
            channel = event[1]
            local.sent[channel] += 1
            body = b"\x91" + bytes((local.sent[channel],))  # MessagePack: an array of one small number
            outcome.carry_out(local.machine.handle(MessagesSent(channel, 1, body)))
        else:
            if isinstance(event, Restarted):
                local.captured.clear()
            elif isinstance(event, AlignmentTimedOut):
                local.timers -= {event.snapshot}
            effects = local.machine.handle(event)
            if isinstance(event, FrameReceived) and not any(isinstance(effect, DeliverFrame) for effect in effects):
                raise ProtocolViolation(local.machine.process, event.channel, "a frame taken is held back (C7)")
            outcome.carry_out(effects)
        return LocalStep(self.local_number(local), tuple(outcome.puts), tuple(outcome.orders), tuple(outcome.fragments))

    def local_number(self, local: Local) -> int:
        return self.locals.number(self._local_key(local) if self.merge else len(self.locals.values), local)

    def _local_key(self, local: Local) -> Hashable:
        return (
            local.machine.process,
            local.machine.epoch,
            canonical(local.machine, self.unordered),
            local.actual(),
            tuple(sorted(local.captured.items())),
            local.held,
            local.timers,
        )

    def slot(self, snapshot: int, process: int) -> int:
        return snapshot * len(self.processes) + process

    # Queries of the search

    def meaning(self, state: Global) -> Hashable:
        """Return the meaning of `state`, independent of this space's numbering."""
        locals_, queues = state[: self.first_channel], state[self.first_channel : -2]
        handed = self.collections.values[state[-2]]
        return (
            tuple(self._local_key(self.locals.values[number]) for number in locals_),
            tuple(tuple(self.items.values[item] for item in self.contents.values[number]) for number in queues),
            tuple((slot, self.fragments.keys[number]) for slot, number in handed),
            state[-1],
        )

    def complete(self, state: Global) -> Iterator[tuple[SnapshotId, tuple[int, ...]]]:
        """Yield each snapshot with all fragments, with their numbers."""
        handed = dict(self.collections.values[state[-2]])
        for number, snapshot in enumerate(self.ids):
            numbers = [handed.get(self.slot(number, place)) for place in range(len(self.processes))]
            if all(found is not None for found in numbers):
                yield snapshot, tuple(found for found in numbers if found is not None)

    def required(self, state: Global) -> list[SnapshotId]:
        """Return the snapshots that must be complete when nothing can happen any more."""
        count = len(self.scenario.snapshots)
        aborted = state[-1] >> 1
        return [self.ids[number + count] if aborted >> number & 1 else self.ids[number] for number in range(count)]

    def held(self, state: Global) -> list[str]:
        """Describe the buffers that processes still hold."""
        found = []
        for place, process in enumerate(self.processes):
            local = self.locals.values[state[place]]
            found += [f"{process} still holds buffers for {one}" for one in (*local.machine.open, *local.captured)]
            found += [f"{process} still holds {channel} back" for channel in sorted(local.held)]
        return found


def _snapshot_ids(scenario: Scenario) -> tuple[SnapshotId, ...]:
    """Return the ids of the snapshots, then those of their retries, which after a rollback are of a new epoch."""
    count = len(scenario.snapshots)
    first = tuple(SnapshotId(1, number, COORDINATOR) for number in range(1, count + 1))
    if scenario.rollback:
        return first + tuple(SnapshotId(2, number, COORDINATOR) for number in range(1, count + 1))
    retries = tuple(SnapshotId(1, number, COORDINATOR) for number in range(count + 1, 2 * count + 1))
    return first + retries if scenario.crash else first
