"""The conserved quantity of the system, over all states and all messages in flight, is the same as at the start."""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from strobe.process import System
from strobe.protocol import Snapshot
from strobe.simulation.checkers.base import Checker
from strobe.storage.content.state_codec import decode_snapshot

if TYPE_CHECKING:
    from strobe.simulation.world import World


def conserved_value(system: System, snapshot: Snapshot) -> Any:
    """Return the conserved quantity in `snapshot`."""
    return system.conserved_value(*decode_snapshot(system, snapshot))


class Conservation(Checker):
    name = "conservation"

    def watches(self, world: "World") -> bool:
        return world.system.conserved is not None

    def on_commit(self, world: "World", snapshot: Snapshot) -> Iterator[str]:
        if world.system.conserved is None:
            return
        value = conserved_value(world.system, snapshot)
        if value != world.conserved_at_start:
            yield f"the conserved quantity is {value}, and was {world.conserved_at_start} at the start"
