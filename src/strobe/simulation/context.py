"""The context of a simulated process."""

import sys
from _thread import get_ident
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from strobe.encodable import encode_message, listed
from strobe.errors import UsageError
from strobe.event_bound import (
    EVENT_BYTES_MAX,
    LOOK_BYTES,
    MESSAGE_BYTES,
    RECORD_BYTES,
    REQUEST_BYTES,
    TIMER_BYTES,
    EventBound,
)
from strobe.handlers import misplaced
from strobe.process import Context, Random

if TYPE_CHECKING:
    from strobe.simulation.node import Node


class SimulatedContext(Context):
    """Collects the actions of an event; the node carries them out when the event has ended."""

    random: Random

    def __init__(self, node: "Node", random: Random) -> None:
        self._node = node
        self.name = node.name
        self.inputs = ()
        self.outputs = ()
        self.random = random
        self.outbox: dict[str, list[bytes]] = {}
        self.requested: list[str] = []
        self.bound = EventBound(node.name, EVENT_BYTES_MAX, self._event)
        # The thread that runs a handler of the process now, if there is one.
        self.thread: int | None = None
        # The class of the last message whose type was checked.
        self._kind: type | None = None
        # Whether the process's channels have changed since its last event: a replay needs that.
        self.changed = True

    def _event(self) -> int:
        return self._node.position

    def _require_event(self, action: str) -> None:
        """Raise UsageError if the process does `action` outside of its events, or in another thread."""
        if self.thread != get_ident():
            raise misplaced(self.name, action)

    def send(self, channel: str, message: Any) -> None:
        if self.thread != get_ident():
            raise misplaced(self.name, f"sends on {channel!r}")
        # Encoded immediately: later changes to the message by its sender are not sent.
        payload = encode_message(self.name, channel, message)
        bound = self.bound
        bound.pending += MESSAGE_BYTES + len(payload)
        if bound.pending >= LOOK_BYTES:  # like `spend`, but inlined: it runs for every message
            bound.look()
        if type(message) is not self._kind:
            self._take_kind(channel, message)
        queue = self.outbox.get(channel)
        if queue is not None:
            queue.append(payload)
        else:
            self._require_output(channel)
            self.outbox[channel] = [payload]

    def send_many(self, channel: str, messages: Iterable[Any]) -> None:
        self._require_event(f"sends on {channel!r}")
        batch = listed(self.name, channel, messages)
        payloads = [encode_message(self.name, channel, message) for message in batch]
        self._node.world.system.message_types.require_all(self.name, channel, batch)
        self.bound.spend(MESSAGE_BYTES * len(payloads) + sum(map(len, payloads)))
        self._require_output(channel)
        if payloads:
            self.outbox.setdefault(channel, []).extend(payloads)

    def _require_output(self, channel: str) -> None:
        if channel not in self.outputs:
            known = ", ".join(self.outputs) or "none"
            raise UsageError(
                f"process {self.name!r} sends on {channel!r}, which is not an output of it; outputs: {known}"
            )

    def _take_kind(self, channel: str, message: Any) -> None:
        """Raise UsageError if `message` is of no declared type; remember its class if all of that class may be sent."""
        kind, types = type(message), self._node.world.system.message_types
        types.require(self.name, channel, message)
        self._kind = kind if types.has(kind) else None

    def set_timer(self, name: str, after_s: float) -> None:
        self._require_event(f"sets the timer {name!r}")
        self.bound.spend(TIMER_BYTES + len(name))
        self._node.timers.set(name, after_s)

    def cancel_timer(self, name: str) -> None:
        self._require_event(f"cancels the timer {name!r}")
        self._node.timers.cancel(name)

    def now(self) -> float:
        return self._node.network.scheduler.now_us / 1_000_000

    def emit(self, record: Any) -> None:
        self._require_event("emits a record")
        self.bound.spend(RECORD_BYTES + sys.getsizeof(record))
        self._node.world.emitted.append((self.name, record))

    def snapshot(self) -> str:
        self._require_event("requests a snapshot")
        self.bound.spend(REQUEST_BYTES)
        requested: str = self._node.protocol.name_snapshot(self._node.position, len(self.requested))
        self.requested.append(requested)
        return requested
