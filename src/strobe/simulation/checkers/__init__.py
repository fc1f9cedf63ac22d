"""The checkers of a simulated run, one file each. Each checks one invariant."""

from strobe.simulation.checkers.base import Checker
from strobe.simulation.checkers.buffers_freed import BuffersFreed
from strobe.simulation.checkers.channels_exact import ChannelsExact
from strobe.simulation.checkers.conservation import Conservation
from strobe.simulation.checkers.converges import Converges
from strobe.simulation.checkers.cut_consistent import CutConsistent
from strobe.simulation.checkers.deliveries_go_on import DeliveriesGoOn
from strobe.simulation.checkers.exactly_once import ExactlyOnce
from strobe.simulation.checkers.no_orphan import NoOrphan
from strobe.simulation.checkers.proof_verifies import ProofVerifies

__all__ = ["Checker", "all_checkers"]


def all_checkers() -> tuple[Checker, ...]:
    """Return one checker of each kind, for one run."""
    return (
        CutConsistent(),
        ProofVerifies(),
        ChannelsExact(),
        Conservation(),
        NoOrphan(),
        BuffersFreed(),
        DeliveriesGoOn(),
        Converges(),
        ExactlyOnce(),
    )
