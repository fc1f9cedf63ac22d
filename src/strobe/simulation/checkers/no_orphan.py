"""Every snapshot that was begun has an outcome: none hangs (E6, E7)."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from strobe.simulation.checkers.base import Checker

if TYPE_CHECKING:
    from strobe.simulation.world import World


class NoOrphan(Checker):
    name = "no-orphan"

    def at_end(self, world: "World") -> Iterator[str]:
        for snapshot in world.begun:
            if snapshot not in world.outcomes:
                yield f"{snapshot} was begun, and neither committed nor aborted"
