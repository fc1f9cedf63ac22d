"""In a healthy world, a requested snapshot completes."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from strobe.simulation.checkers.base import Checker

if TYPE_CHECKING:
    from strobe.simulation.world import World


class Converges(Checker):
    name = "converges"

    def at_end(self, world: "World") -> Iterator[str]:
        if not world.converged:
            yield f"no snapshot completed after all faults had ended; {len(world.committed)} were committed in all"
