"""The recorded positions are a consistent cut of the real run: every message received in it was sent in it."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from strobe.protocol import Snapshot
from strobe.simulation.checkers.base import Checker

if TYPE_CHECKING:
    from strobe.simulation.world import World


def positions(snapshot: Snapshot) -> dict[str, int]:
    """Return the cut of a snapshot."""
    return {name: fragment.state.position for name, fragment in snapshot.fragments.items() if fragment.state}


class CutConsistent(Checker):
    name = "cut-consistent"

    def on_commit(self, world: "World", snapshot: Snapshot) -> Iterator[str]:
        cut = positions(snapshot)
        for spec in snapshot.view.channels:
            if spec.source in cut and spec.target in cut:
                journal = world.journal.channels[spec.id, spec.incarnation]
                for ordinal in journal.orphans(cut[spec.source], cut[spec.target])[:1]:
                    yield f"message {ordinal} on {spec.id} was received before the cut, but sent after it"
