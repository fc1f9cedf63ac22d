"""Steps that commute with all others, and are therefore taken at once: one order of such steps stands for all (P3).

A step is taken before all others under three conditions. It and the steps that can happen before it do not affect each
other. It stays possible until it is taken. And no process records anything by it. Then every end state and every
possible snapshot is still reached: each omitted order differs from a kept one only by swaps of such steps. These steps
are, by what a process has still to record:

- *Counts* (Lai-Yang). Once a process has recorded the cut (or dropped it), a relayed count is only the number of
  messages. Not before a crash that may still come: it may fall between the count and what follows.
- *Ignored barriers*: a barrier that does not change a process that has recorded everything.
- *Receives* of a process that has recorded everything, on a channel whose barriers have come: nothing depends any more
  on what it has received.
- *Time-outs of finished snapshots*: they only stop the timer, or send barriers to processes that have handed over
  everything.
- *Sends and forwards* of a process that will not send another barrier: no barrier can overtake them, and their receiver
  takes them at any time.

All except the first apply to barriers that overtake, without a crash or rollback: both make processes record again. A
test compares with the full search, to show that nothing is hidden (`tests/simulation/long/test_explorer.py`).
"""

from typing import TYPE_CHECKING

from strobe.protocol.process.events import FrameReceived, SentCountRelayed
from strobe.simulation.explorer.states import Action, Global

if TYPE_CHECKING:
    from strobe.simulation.explorer.space import Space

Steps = list[tuple[Action, Global]]


def ample_steps(space: "Space", state: Global) -> Steps:
    """Return the steps that can be taken before all others, with their resulting states; may be empty."""
    if state[-1]:
        return _count(space, state)
    if not space.overtaking or space.scenario.crash or space.scenario.rollback:
        return []
    recorded = {place for place in range(len(space.processes)) if _has_recorded(space, state, place)}
    if not recorded:
        return []
    return (
        _ignored_or_received(space, state, recorded)
        or _time_out(space, state, recorded)
        or _sent(space, state, recorded)
    )


def _count(space: "Space", state: Global) -> Steps:
    for place in range(len(space.processes)):
        queue = space.contents.values[state[space.control_at + place]]
        event = space.items.values[queue[0]] if queue else None
        if isinstance(event, SentCountRelayed):
            machine = space.locals.values[state[place]].machine
            if machine.index >= event.snapshot.counter:
                return [space.control(state, place)]
    return []


def _ignored_or_received(space: "Space", state: Global, recorded: set[int]) -> Steps:
    for action, after in space.deliveries(state):
        place = space.processes.index(action.process)
        if place not in recorded:
            continue
        if isinstance(action.event, FrameReceived):
            recordings = space.locals.values[state[place]].machine.open.values()
            if not any(action.channel in recording.pending for recording in recordings):
                return [(action, after)]
        elif after[place] == state[place]:
            return [(action, after)]
    return []


def _time_out(space: "Space", state: Global, recorded: set[int]) -> Steps:
    for action, after in space.timeouts(state):
        place = space.processes.index(action.process)
        if place in recorded:
            changed = [at for at in range(len(state)) if state[at] != after[at]]
            targets = {target for at, target in enumerate(space.targets) if space.first_channel + at in changed}
            if all(_is_done(space, state, target) for target in targets):
                return [(action, after)]
    return []


def _sent(space: "Space", state: Global, recorded: set[int]) -> Steps:
    silent = {place for place in recorded if not space.locals.values[state[place]].timers}
    for action, after in space.forwards(state):
        if space.processes.index(action.process) in silent:
            return [(action, after)]
    for place in silent:
        found = list(space.sends(state, place))
        if found:
            return found
    return []


def _has_recorded(space: "Space", state: Global, place: int) -> bool:
    """Whether a process has recorded its state for every snapshot of the scenario."""
    key = place, state[place], state[-2]
    known = space.recorded.get(key)
    if known is None:
        captured = space.locals.values[state[place]].captured
        handed = dict(space.collections.values[state[-2]])
        known = all(one in captured or space.slot(number, place) in handed for number, one in enumerate(space.ids))
        space.recorded[key] = known
    return known


def _is_done(space: "Space", state: Global, place: int) -> bool:
    """Whether it has also handed over everything that it recorded."""
    return not space.locals.values[state[place]].captured and _has_recorded(space, state, place)
