"""The seeded simulation of the protocols: a network with faults, checkers, mutants, the exhaustive explorer, replay."""

from strobe.protocol.process.first_view import first_view
from strobe.simulation.checkers import Checker, all_checkers
from strobe.simulation.faults import Faults
from strobe.simulation.recorder import Recorder
from strobe.simulation.replay import Replay, ReplayDiverged, compare_at_cut
from strobe.simulation.world import Violated, World

__all__ = [
    "Checker",
    "Faults",
    "Recorder",
    "Replay",
    "ReplayDiverged",
    "Violated",
    "World",
    "all_checkers",
    "compare_at_cut",
    "first_view",
]
