"""The context of a simulated process."""

import sys
from typing import TYPE_CHECKING, Any

from strobe.encodable import encode_message
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
        # Whether the process's channels have changed since its last event: a replay needs that.
        self.changed = True

    def _event(self) -> int:
        return self._node.position

    def send(self, channel: str, message: Any) -> None:
        # Encoded immediately: later changes to the message by its sender are not sent.
        payload = encode_message(self.name, channel, message)
        bound = self.bound
        bound.pending += MESSAGE_BYTES + len(payload)
        if bound.pending >= LOOK_BYTES:  # like `spend`, but inlined: it runs for every message
            bound.look()
        queue = self.outbox.get(channel)
        if queue is not None:
            queue.append(payload)
        elif channel in self.outputs:
            self.outbox[channel] = [payload]
        else:
            known = ", ".join(self.outputs) or "none"
            raise UsageError(
                f"process {self.name!r} sends on {channel!r}, which is not an output of it; outputs: {known}"
            )

    def set_timer(self, name: str, after_s: float) -> None:
        self.bound.spend(TIMER_BYTES + len(name))
        self._node.timers.set(name, after_s)

    def cancel_timer(self, name: str) -> None:
        self._node.timers.cancel(name)

    def now(self) -> float:
        return self._node.network.scheduler.now_us / 1_000_000

    def emit(self, record: Any) -> None:
        self.bound.spend(RECORD_BYTES + sys.getsizeof(record))
        self._node.world.emitted.append((self.name, record))

    def snapshot(self) -> str:
        self.bound.spend(REQUEST_BYTES)
        requested: str = self._node.protocol.name_snapshot(self._node.position, len(self.requested))
        self.requested.append(requested)
        return requested
