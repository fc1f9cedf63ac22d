"""No process keeps anything for a finished snapshot: recordings, captured states, fragments, or inputs it held back."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from strobe.simulation.checkers.base import Checker

if TYPE_CHECKING:
    from strobe.simulation.world import World


class BuffersFreed(Checker):
    name = "buffers-freed"

    def at_end(self, world: "World") -> Iterator[str]:
        for name, node in world.nodes.items():
            held = {*node.protocol.open, *node.captured, *node.kept}
            for snapshot in sorted(held):
                if str(snapshot) in world.outcomes:
                    yield f"{name} still holds buffers for {snapshot}, which has ended"
            for channel in node.queues.held() if node.queues is not None else ():
                yield f"{name} still holds {channel} back, and no snapshot is under way"
