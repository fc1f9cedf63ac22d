"""What a checker may look at. By default it finds nothing wrong."""

from collections.abc import Iterable
from typing import TYPE_CHECKING

from strobe.protocol import Snapshot

if TYPE_CHECKING:
    from strobe.simulation.world import World


class Checker:
    """Yields what is wrong, in words; finds nothing unless a method says otherwise."""

    name = ""

    def watches(self, world: "World") -> bool:
        """Tell whether there is anything in `world` for this one to look at."""
        return True

    def on_commit(self, world: "World", snapshot: Snapshot) -> Iterable[str]:
        """Look at a snapshot that has just been committed."""
        return ()

    def on_stall(self, world: "World", process: str) -> Iterable[str]:
        """A process has taken a frame and not delivered it in the same step, while it was recording."""
        return ()

    def at_end(self, world: "World") -> Iterable[str]:
        """Look at the world after the liveness phase."""
        return ()
