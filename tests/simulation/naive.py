"""Naive detectors: correct definitions, but their input is not a consistent cut with its channels.

One reads processes one after the other while they run. The other has a consistent cut, but ignores the channels.
"""

from strobe.causality.predicate_input import PredicateInput, ProcessDeclaration, predicate_input_of
from strobe.declarations import NOTHING

READS_EVERY_US = 700


def without_channels(snapshot):
    """Return the facts of a snapshot as if nothing were ever in flight."""
    return PredicateInput(predicate_input_of(snapshot).declarations)


class SequentialReader:
    """Reads one process after the other, some microseconds apart, and judges all of them after the last."""

    def __init__(self, world, judge):
        self.world = world
        self.judge = judge
        self.seen = {}
        self.look(0, None)

    def look(self, place, _):
        names = list(self.world.nodes)
        if place < len(names):
            state = self.world.nodes[names[place]].capture()
            self.seen[names[place]] = ProcessDeclaration(state.declared or NOTHING, len(state.timers))
        else:
            self.judge(PredicateInput(dict(self.seen)))
            place = -1
        self.world.scheduler.after(READS_EVERY_US, self.look, place + 1)


def end_of(world):
    """Return the facts of the current states, when nothing is in flight any more."""
    states = {name: node.capture() for name, node in world.nodes.items()}
    return PredicateInput(
        {name: ProcessDeclaration(state.declared or NOTHING, len(state.timers)) for name, state in states.items()}
    )
