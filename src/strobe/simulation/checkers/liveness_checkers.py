"""What must hold while processes run, and after all faults: snapshots end, deliveries go on, buffers are freed."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from strobe.simulation.checkers.base import Checker

if TYPE_CHECKING:
    from strobe.simulation.world import World


class NoOrphan(Checker):
    """Every snapshot that was begun has an outcome: none hangs (E6, E7)."""

    name = "no-orphan"

    def at_end(self, world: "World") -> Iterator[str]:
        for snapshot in world.begun:
            if snapshot not in world.outcomes:
                yield f"{snapshot} was begun, and neither committed nor aborted"


class BuffersFreed(Checker):
    """No process keeps anything for a finished snapshot: recordings, captured states, fragments, inputs held back."""

    name = "buffers-freed"

    def at_end(self, world: "World") -> Iterator[str]:
        for name, node in world.nodes.items():
            held = {*node.protocol.open, *node.captured, *node.kept}
            for snapshot in sorted(held):
                if str(snapshot) in world.outcomes:
                    yield f"{name} still holds buffers for {snapshot}, which has ended"
            for channel in node.queues.held() if node.queues is not None else ():
                yield f"{name} still holds {channel} back, and no snapshot is under way"


class DeliveriesGoOn(Checker):
    """The application is never paused: during a snapshot, each frame is delivered in the step that takes it (C7)."""

    name = "deliveries-go-on"

    def on_stall(self, world: "World", process: str) -> Iterator[str]:
        node = world.nodes[process]
        held = node.frames_taken - node.frames_delivered
        yield f"{process} holds {held} frames back between its cut and its completion"


class Converges(Checker):
    """In a healthy world, a requested snapshot completes."""

    name = "converges"

    def at_end(self, world: "World") -> Iterator[str]:
        if not world.converged:
            yield f"no snapshot completed after all faults had ended; {len(world.committed)} were committed in all"
