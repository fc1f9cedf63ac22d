"""The exhaustive explorer (P3): the shipped protocol classes, in every interleaving of small systems.

In: a `Scenario`, and a protocol class or a mutant of it. Out: an `Explored`: the number of states, and a shortest
path to the first violation, if there is one. `space` says what can happen in a state, `search` visits them all.
"""

from strobe.simulation.explorer.scenarios import Scenario, scenario, scenarios, smallest
from strobe.simulation.explorer.search import Explored, explore
from strobe.simulation.explorer.space import Space
from strobe.simulation.explorer.states import Action

__all__ = ["Action", "Explored", "Scenario", "Space", "explore", "scenario", "scenarios", "smallest"]
