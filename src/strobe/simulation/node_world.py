"""What a simulated node uses of its world. The world itself imports the nodes."""

from typing import TYPE_CHECKING, Any, Protocol

from strobe.errors import ProtocolViolation
from strobe.process import System
from strobe.protocol import SnapshotId
from strobe.simulation.channel_queues import ChannelQueue, Item
from strobe.simulation.journal import Journal
from strobe.simulation.network import Network
from strobe.simulation.recorder import Recorder

if TYPE_CHECKING:
    from strobe.simulation.node import Node


class NodeWorld(Protocol):
    """What a node uses of its world."""

    system: System
    protocol_class: Any
    network: Network
    recorder: Recorder | None
    journals: dict[int, Journal]
    channel_queues: dict[tuple[str, int, int], ChannelQueue]
    emitted: list[tuple[str, Any]]
    events: int

    def transmit(self, channel: str, item: Item, epoch: int) -> None: ...
    def recorded(self, node: "Node", snapshot: SnapshotId) -> None: ...
    def free_later(self, node: "Node", snapshot: SnapshotId) -> None: ...
    def stalled(self, process: str) -> None: ...
    def violated(self, node: "Node", violation: ProtocolViolation) -> None: ...
    def remove(self, name: str) -> None: ...
