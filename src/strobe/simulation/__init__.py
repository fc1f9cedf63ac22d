"""The seeded simulation of the protocols: a network with faults, checkers, mutants, the exhaustive explorer, replay.

In: a system, a seed and faults. Out: a `World` that has run: its snapshots, its violations, perhaps its trace. The
same seed gives the same run on every machine.
"""

from strobe.protocol.process.first_view import first_view
from strobe.simulation.checkers import Checker, all_checkers
from strobe.simulation.checkers.base import Violated
from strobe.simulation.faults import Faults
from strobe.simulation.recorder import Recorder
from strobe.simulation.replay import Replay, ReplayDiverged, compare_at_cut
from strobe.simulation.world import World

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
