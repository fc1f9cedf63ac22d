"""Even after rollbacks, each process has applied each message sent to it exactly once, except those in flight (R1).

The applied messages belong to the state of a process: a message is added when the process takes it, and is removed only
when the state goes back. The messages that count are those of the surviving timeline: of two messages with the same
ordinal, sent before and after a rollback, only the latter counts.
"""

from collections import Counter, defaultdict
from collections.abc import Iterator
from typing import TYPE_CHECKING

from strobe.protocol import Snapshot
from strobe.simulation.checkers.base import Checker
from strobe.simulation.checkers.snapshot_checkers import positions, recorded_messages

if TYPE_CHECKING:
    from strobe.simulation.world import World

Message = tuple[int, int]
"""An ordinal, and the epoch in which the message was sent."""


class ExactlyOnce(Checker):
    name = "exactly-once"

    def applies_to(self, world: "World") -> bool:
        return world.rollbacks is not None

    def on_commit(self, world: "World", snapshot: Snapshot) -> Iterator[str]:
        if world.rollbacks is None:
            return
        cut = positions(snapshot)
        applied = {process: _applied(world, str(snapshot.id), process) for process in cut}
        for spec in snapshot.view.channels:
            if spec.source not in cut or spec.target not in cut:
                continue
            journal = world.journal.channels[spec.id, spec.incarnation]
            in_flight = {ordinal for ordinal, _ in recorded_messages(snapshot, spec.target, spec.id)}
            expected = Counter(
                (ordinal, journal.sent_in(ordinal))
                for ordinal in range(1, journal.sent_before(cut[spec.source]) + 1)
                if ordinal not in in_flight
            )
            yield from _compare(spec.id, spec.target, expected, applied[spec.target][spec.id, spec.incarnation])


def _applied(world: "World", snapshot: str, process: str) -> dict[tuple[str, int], Counter[Message]]:
    assert world.rollbacks is not None
    found: dict[tuple[str, int], Counter[Message]] = defaultdict(Counter)
    for one in world.rollbacks.applied_at(snapshot, process):
        key = (one.channel, one.incarnation)
        found[key][one.ordinal, world.journals[one.epoch].channels[key].sent_in(one.ordinal)] += 1
    return found


def _compare(channel: str, process: str, expected: Counter[Message], applied: Counter[Message]) -> Iterator[str]:
    for ordinal, epoch in sorted(expected - applied)[:1]:
        yield f"{process} has not applied message {ordinal} on {channel}, sent in epoch {epoch} and not in flight"
    for ordinal, epoch in sorted(applied - expected)[:1]:
        again = f"{applied[ordinal, epoch]} times" if (ordinal, epoch) in expected else "though it was undone"
        yield f"{process} has applied message {ordinal} on {channel}, sent in epoch {epoch}, {again}"
