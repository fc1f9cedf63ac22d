"""Replays a path of the search on a stage, so that it can be drawn."""

from collections.abc import Sequence
from typing import Any

from strobe.protocol import PROTOCOLS
from strobe.protocol.process.events import SentCountRelayed
from strobe.simulation.explain.barrier_stage import BarrierStage
from strobe.simulation.explain.stage import Stage
from strobe.simulation.explorer.scenarios import Scenario
from strobe.simulation.explorer.states import Action


def play(scenario: Scenario, protocol_class: Any, path: Sequence[Action]) -> Stage:
    """Return a stage on which every action of `path` has happened. Messages are shown by their number."""
    protocol_class = protocol_class or PROTOCOLS[scenario.protocol]
    kind = BarrierStage if protocol_class.barriers else Stage
    stage = kind(scenario.view, protocol_class, dict.fromkeys(scenario.view.processes, 0), unit="m")
    sent = {spec.id: 0 for spec in scenario.view.channels}
    for action in path:
        if action.kind == "send":
            sent[action.channel] += 1
            stage.send(action.process, action.channel, sent[action.channel])
        elif action.kind == "deliver":
            stage.take_item(action.channel, action.event)
        elif isinstance(stage, BarrierStage) and action.kind == "forward":
            stage.forward(action.channel, arrives=False)  # arrival is a step of its own, which may come later
        elif action.kind == "crash":
            stage.crash(action.process)
        elif action.kind == "rollback":
            stage.roll_back(action.event, 2)
            sent = {channel: stage.machines[ends[0]].outgoing[channel].count for channel, ends in stage.ends.items()}
        else:
            if isinstance(action.event, SentCountRelayed):
                stage.relays.remove((action.process, action.event))
            stage.order(action.process, action.event)
    return stage
