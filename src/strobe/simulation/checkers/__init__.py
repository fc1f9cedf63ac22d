"""The checkers of a simulated run. Each checks one property, against the journal of what really happened.

In: the whole world, at each commit, at a stall, and at the end of a run. Out: descriptions of violations. A checker
is only trusted because it catches mutants (`strobe.simulation.mutants`).
"""

from strobe.simulation.checkers.base import Checker
from strobe.simulation.checkers.exactly_once import ExactlyOnce
from strobe.simulation.checkers.liveness_checkers import BuffersFreed, Converges, DeliveriesGoOn, NoOrphan
from strobe.simulation.checkers.snapshot_checkers import (
    ChannelsExact,
    Conservation,
    CutConsistent,
    Invariants,
    ProofVerifies,
)

__all__ = ["Checker", "all_checkers"]


def all_checkers() -> tuple[Checker, ...]:
    """Return one checker of each kind, for one run."""
    return (
        CutConsistent(),
        ProofVerifies(),
        ChannelsExact(),
        Conservation(),
        Invariants(),
        NoOrphan(),
        BuffersFreed(),
        DeliveriesGoOn(),
        Converges(),
        ExactlyOnce(),
    )
