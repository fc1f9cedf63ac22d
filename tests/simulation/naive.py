"""Naive detectors: the right definitions, on inputs that are not of a consistent cut with its channels.

One looks at processes one after the other while they go on. The other has a consistent cut, and forgets the channels.
"""

from strobe.causality.predicate_input import PredicateInput, ProcessDeclaration, predicate_input_of
from strobe.declarations import NOTHING

LOOKS_EVERY_US = 700


def without_channels(snapshot):
    """The facts of a snapshot as it would be if nothing were ever in flight."""
    return PredicateInput(predicate_input_of(snapshot).declarations)


class Looker:
    """Looks at one process after the other, at some microseconds' distance, and at its end at the whole of it."""

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
        self.world.scheduler.after(LOOKS_EVERY_US, self.look, place + 1)


def end_of(world):
    """The facts of what really is, when nothing is in flight any more."""
    states = {name: node.capture() for name, node in world.nodes.items()}
    return PredicateInput(
        {name: ProcessDeclaration(state.declared or NOTHING, len(state.timers)) for name, state in states.items()}
    )
