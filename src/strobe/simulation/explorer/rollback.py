"""A rollback in the explorer: at any step, all processes go back to the last complete snapshot or the beginning (R1).

It is one step here. Keeping epochs apart is the host's duty, and is tested in the simulator. The explorer checks that
the protocols continue correctly from every possible snapshot: counters, the frames recorded in flight, and then one
more snapshot of each.
"""

from typing import TYPE_CHECKING

import msgspec

from strobe.protocol import Fragment
from strobe.protocol.process.events import FrameReceived
from strobe.simulation.explorer.states import ActualMessages, Global, Local

if TYPE_CHECKING:
    from strobe.simulation.explorer.space import Space


def rolled_back(space: "Space", state: Global) -> Global:
    """Return the state after a rollback: the snapshots are requested again, in the new epoch."""
    complete = [numbers for _, numbers in space.complete(state)]
    parts = [space.fragments.values[number] for number in complete[-1]] if complete else None
    if parts is None or any(actual is None for _, actual in parts):
        locals_ = [space.fresh(process, 2) for process in space.processes]
        contents: dict[str, tuple[int, ...]] = {}
    else:
        locals_, contents = _restored(space, parts)
    count = len(space.scenario.snapshots)
    queues = [space.contents.number(contents.get(channel, ())) for channel in space.channels]
    orders = [space.contents.number(())] * (space.control_at - space.outbox_at + len(space.processes))
    happened = 1 + ((1 << count) - 1) * 2
    numbers = [space.local_number(local) for local in locals_]
    after = (*numbers, *queues, *orders, space.collections.number(()), happened)
    return space.order(after, space.requests(range(count), count))


def _restored(
    space: "Space", parts: list[tuple[Fragment, ActualMessages]]
) -> tuple[list[Local], dict[str, tuple[int, ...]]]:
    """Return every process as in the snapshot, and its channels with the messages in flight."""
    view = space.view_in(2)
    counts = {channel: frontier.count for fragment, _ in parts for channel, frontier in fragment.sent.items()}
    locals_ = []
    for fragment, actual in parts:
        sent = {spec.id: counts[spec.id] for spec in view.incoming(fragment.process)}
        machine = space.protocol_class.restored(fragment.process, view, 2, fragment, sent)
        locals_.append(msgspec.structs.replace(space.fresh(fragment.process, 2), machine=machine, **actual.as_fields()))
    contents = {
        channel: tuple(space.items.number(FrameReceived(channel, item.frame)) for item in items)
        for fragment, _ in parts
        for channel, items in fragment.in_flight.items()
    }
    return locals_, {channel: space.arranged(channel, queue) for channel, queue in contents.items()}
