"""The interface of a checker, which by default finds no violation; and what a violation is."""

from collections.abc import Iterable
from typing import TYPE_CHECKING

import msgspec

from strobe.protocol import Snapshot

if TYPE_CHECKING:
    from strobe.simulation.world import World


class Violated(msgspec.Struct, frozen=True):
    """A violation that a checker found."""

    checker: str
    snapshot: str
    problem: str
    at_us: int

    def __str__(self) -> str:
        where = f" {self.snapshot}" if self.snapshot else ""
        return f"{self.checker}:{where} {self.problem} (at {self.at_us / 1_000_000:.6f} s)"


class Checker:
    """Yields descriptions of violations; none unless a method is overridden."""

    name = ""

    def applies_to(self, world: "World") -> bool:
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
