"""The conserved quantity of the system, over all states and all messages in flight, is what it was at the start."""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import msgspec

from strobe.process import Process, System
from strobe.protocol import Snapshot
from strobe.protocol.fragment import MSGPACK
from strobe.simulation.checkers.base import Checker

if TYPE_CHECKING:
    from strobe.simulation.world import World


def decode_state(process: Process, encoding: str, data: bytes) -> Any:
    """Return a captured state as `capture` gave it."""
    if encoding != MSGPACK:
        return data
    return msgspec.msgpack.decode(data, type=type(process.capture()))


def conserved_value(system: System, snapshot: Snapshot) -> Any:
    """Return the conserved quantity as `snapshot` has it."""
    assert system.conserved is not None
    states = {
        name: decode_state(system.processes[name], fragment.state.encoding, fragment.state.data)
        for name, fragment in snapshot.fragments.items()
        if fragment.state is not None
    }
    messages = [
        message
        for fragment in snapshot.fragments.values()
        for items in fragment.in_flight.values()
        for item in items
        for message in system.decoder.decode(item.frame.body)[item.consumed :]
    ]
    return system.conserved(states, messages)


class Conservation(Checker):
    name = "conservation"

    def on_commit(self, world: "World", snapshot: Snapshot) -> Iterator[str]:
        if world.system.conserved is None:
            return
        value = conserved_value(world.system, snapshot)
        if value != world.conserved_at_start:
            yield f"the conserved quantity is {value}, and was {world.conserved_at_start} at the start"
