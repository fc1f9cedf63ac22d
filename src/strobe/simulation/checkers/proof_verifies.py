"""The proof of each snapshot holds (P1)."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from strobe.causality.proof import verify
from strobe.protocol import Snapshot
from strobe.simulation.checkers.base import Checker

if TYPE_CHECKING:
    from strobe.simulation.world import World


class ProofVerifies(Checker):
    name = "proof-verifies"

    def on_commit(self, world: "World", snapshot: Snapshot) -> Iterator[str]:
        yield from (str(finding) for finding in verify(snapshot, world.views[snapshot.view.number]).findings)
