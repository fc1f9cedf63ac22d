"""The context that a simulated process sees."""

from typing import TYPE_CHECKING, Any

import msgspec

from strobe.errors import UsageError
from strobe.process import Context, Random

if TYPE_CHECKING:
    from strobe.simulation.node import Node

_ENCODER = msgspec.msgpack.Encoder()
_encode = _ENCODER.encode


class SimulatedContext(Context):
    """Collects what an event does; the node carries it out when the event has ended."""

    random: Random

    def __init__(self, node: "Node", random: Random) -> None:
        self._node = node
        self.name = node.name
        self.inputs = ()
        self.outputs = ()
        self.random = random
        self.outbox: dict[str, list[bytes]] = {}
        self.requested: list[str] = []
        # Whether the process sees other channels than at its last event: a replay must know.
        self.changed = True

    def send(self, channel: str, message: Any) -> None:
        # Encoded at once: what the sender does to the message afterwards is not sent.
        payload = _encode(message)
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
        self._node.set_timer(name, after_s)

    def cancel_timer(self, name: str) -> None:
        self._node.cancel_timer(name)

    def now(self) -> float:
        return self._node.world.now_us / 1_000_000

    def emit(self, record: Any) -> None:
        self._node.world.emitted.append((self.name, record))

    def snapshot(self) -> str:
        requested = self._node.name_snapshot(len(self.requested))
        self.requested.append(requested)
        return requested
