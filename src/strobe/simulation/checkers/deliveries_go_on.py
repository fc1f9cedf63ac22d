"""The application is never paused: during a snapshot, each frame is delivered in the step that takes it (C7)."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from strobe.simulation.checkers.base import Checker

if TYPE_CHECKING:
    from strobe.simulation.world import World


class DeliveriesGoOn(Checker):
    name = "deliveries-go-on"

    def on_stall(self, world: "World", process: str) -> Iterator[str]:
        node = world.nodes[process]
        held = node.frames_taken - node.frames_delivered
        yield f"{process} holds {held} frames back between its cut and its completion"
