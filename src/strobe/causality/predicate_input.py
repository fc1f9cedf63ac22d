"""The facts at a cut that a stable predicate needs (G2): what processes do, and what messages in flight will do.

They are read from the stored bytes of a snapshot. What a message does is derived from the rules that its receiver
recorded. They are only as consistent as their source: states that were read one after the other, or without the
channels, show false deadlocks, terminations and garbage (docs/predicates.md).
"""

from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

from strobe.declarations import NOTHING, Declared, FieldKey, MessageRule, field_of
from strobe.errors import UNREADABLE, SnapshotCorrupt
from strobe.protocol.values.fragment import Snapshot
from strobe.protocol.values.frames import InFlight
from strobe.protocol.values.view import View

_decode_body = msgspec.msgpack.Decoder(list[Any]).decode

Frames = tuple[InFlight, ...]
Waiting = tuple[str, str]
"""The waiting process, and the process it waits for."""


class ProcessDeclaration(msgspec.Struct, frozen=True):
    """One process at the cut: what it declares, and how many timers it has pending."""

    declared: Declared = NOTHING
    timers: int = 0

    @property
    def awake(self) -> bool:
        """Whether it can act without receiving anything."""
        return self.declared.active or self.timers > 0


class PredicateInput(msgspec.Struct, frozen=True):
    """All processes of a view, and the messages in flight.

    `in_flight` counts messages by channel, without empty channels; `receiving` are the processes they go to. `granted`
    are the waits that a message in flight will end, `asked` those whose request has not been received, `carried` the
    names that messages in flight refer to. `sends_to` has the channel targets of each process that declares no
    references: it may send there at any time.
    """

    declarations: dict[str, ProcessDeclaration]
    in_flight: dict[str, int] = {}
    receiving: frozenset[str] = frozenset()
    granted: frozenset[Waiting] = frozenset()
    asked: frozenset[Waiting] = frozenset()
    carried: frozenset[str] = frozenset()
    sends_to: dict[str, set[str]] = {}

    @property
    def declares(self) -> bool:
        """Whether any process declares anything; if not, every process counts as able to act at any time."""
        return any(declaration.declared != NOTHING for declaration in self.declarations.values())

    def need_not_count(self, process: str, other: str) -> bool:
        """Whether the wait of `process` for `other` is or may be met, whatever happens to `other`."""
        wait = (process, other)
        return wait in self.granted or wait in self.asked or other not in self.declarations


def predicate_input_of(snapshot: Snapshot) -> PredicateInput:
    """Return the facts in a snapshot, whose proof should hold; SnapshotCorrupt for a body that is not an array."""
    states = {process: fragment.state for process, fragment in snapshot.fragments.items()}
    declarations = {
        process: ProcessDeclaration(state.declared or NOTHING, len(state.timers))
        for process, state in states.items()
        if state
    }
    in_flight = {process: fragment.in_flight for process, fragment in snapshot.fragments.items()}
    return make_predicate_input(str(snapshot.id), snapshot.view, declarations, in_flight)


def make_predicate_input(
    snapshot_id: str,
    view: View,
    declarations: Mapping[str, ProcessDeclaration],
    recorded: Mapping[str, Mapping[str, Frames]],
) -> PredicateInput:
    """Build the facts from the declarations of processes and the frames in flight that each has recorded."""
    declarations = {process: declarations.get(process, ProcessDeclaration()) for process in view.processes}
    in_flight: dict[str, int] = {}
    receiving: set[str] = set()
    granted: set[Waiting] = set()
    asked: set[Waiting] = set()
    carried: set[str] = set()
    sends_to: dict[str, set[str]] = {}
    for channel in view.channels:
        source, target = channel.source, channel.target
        if not declarations[source].declared.references:
            sends_to.setdefault(source, set()).add(target)
        frames = recorded.get(target, {}).get(channel.id, ())
        count = sum(item.frame.count - item.consumed for item in frames)
        if count:
            in_flight[channel.id] = count
            receiving.add(target)
        for message, rule in _declaring(snapshot_id, channel.id, frames, declarations[target].declared.messages):
            granted.update((target, name) for name in _meant(message, rule.grants, source))
            asked.update((name, target) for name in _meant(message, rule.requests, source))
            carried.update(_names(message, rule.references))
    return PredicateInput(
        declarations,
        in_flight,
        frozenset(receiving),
        frozenset(granted),
        frozenset(asked),
        frozenset(carried),
        sends_to,
    )


def _declaring(
    snapshot_id: str, channel: str, frames: Frames, rules: tuple[MessageRule, ...]
) -> Iterator[tuple[Any, MessageRule]]:
    """Yield the messages in flight on a channel that declare something, and the rule for each."""
    for item in frames if rules else ():
        try:
            messages = _decode_body(item.frame.body)
        except UNREADABLE as error:
            place = f"message {item.frame.first_ordinal} of channel {channel}"
            raise SnapshotCorrupt(snapshot_id, f"the frame of {place} cannot be decoded: {error}") from error
        for message in messages[item.consumed :]:
            for rule in rules:
                if rule.is_of(message):
                    yield message, rule


def _meant(message: Any, declared: bool | tuple[FieldKey, ...], sender: str) -> Iterator[str]:
    if isinstance(declared, tuple):
        yield from _names(message, declared)
    elif declared:
        yield sender


def _names(message: Any, places: tuple[FieldKey, ...]) -> Iterator[str]:
    """Yield the names in some fields: strings, and lists of them at any depth."""
    found = [field_of(message, place) for place in places]
    while found:
        value = found.pop()
        if isinstance(value, str):
            yield value
        elif isinstance(value, list):
            found += value
