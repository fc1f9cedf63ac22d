"""The exhaustive explorer (P3): the shipped protocol classes, in every interleaving of small systems."""

from strobe.simulation.explorer.scenarios import Scenario, scenario, scenarios, smallest
from strobe.simulation.explorer.search import Explored, explore
from strobe.simulation.explorer.space import Action, Space

__all__ = ["Action", "Explored", "Scenario", "Space", "explore", "scenario", "scenarios", "smallest"]
