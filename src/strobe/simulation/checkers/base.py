"""The interface of a checker. By default it finds no violation."""

from collections.abc import Iterable
from typing import TYPE_CHECKING

from strobe.protocol import Snapshot

if TYPE_CHECKING:
    from strobe.simulation.world import World


class Checker:
    """Yields descriptions of violations; none unless a method is overridden."""

    name = ""

    def watches(self, world: "World") -> bool:
        """Whether `world` has anything for this checker to check."""
        return True

    def on_commit(self, world: "World", snapshot: Snapshot) -> Iterable[str]:
        """Check a snapshot that has just been committed."""
        return ()

    def on_stall(self, world: "World", process: str) -> Iterable[str]:
        """Check a process that took a frame while recording, and did not deliver it in the same step."""
        return ()

    def at_end(self, world: "World") -> Iterable[str]:
        """Check the world after the liveness phase."""
        return ()
