"""Declarations of processes and message types, as users write them and as snapshots store them (G2).

At its cut, a process declares which processes it waits for, what it refers to, and whether it is active. A message type
declares once whether its messages grant a wait, request one, or carry references. Both are recorded with the snapshot
as plain data, so that a stable predicate can be evaluated from stored bytes alone, without the classes. Sending a
message costs nothing extra.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Protocol

import msgspec

from strobe.errors import UsageError
from strobe.handlers import check_finished


class Waits(msgspec.Struct, frozen=True, omit_defaults=True):
    """The processes that a process waits for before it can proceed: all of them, or any one of them.

    Members may be nested: `Waits.any("a", Waits.all("b", "c"))`. A wait that `times_out` ends by itself.
    """

    processes: tuple["str | Waits", ...]
    any_suffices: bool = False
    times_out: bool = False

    @classmethod
    def all(cls, *processes: "str | Waits", times_out: bool = False) -> "Waits":
        """Wait for all of these."""
        return cls(processes, False, times_out)

    @classmethod
    def any(cls, *processes: "str | Waits", times_out: bool = False) -> "Waits":
        """Wait for any one of these."""
        return cls(processes, True, times_out)

    def __str__(self) -> str:
        members = (f"({one})" if isinstance(one, Waits) else one for one in self.processes)
        return (" or " if self.any_suffices else " and ").join(members) + (", for a time" if self.times_out else "")


class Declares(msgspec.Struct, frozen=True):
    """What the messages of a type do: write `declares = Declares(grants=True)` in the body of the struct.

    `grants`: the receiver no longer waits for the sender, or for the processes in the named fields. `requests`: the
    sender, or the processes in the named fields, now wait for the receiver. `references`: the fields that hold names of
    referenced objects, each one name or a list of names.
    """

    grants: bool | str | Sequence[str] = False
    requests: bool | str | Sequence[str] = False
    references: str | Sequence[str] = ()


FieldKey = str | int
"""The position of a field in an encoded message: its name or, if messages are encoded as arrays, its index."""


class MessageRule(msgspec.Struct, frozen=True, omit_defaults=True):
    """The declaration of a message type, as stored in a snapshot. Its messages have `tag` at `tag_place`.

    Without a `tag`, it is the only message type.
    """

    tag_place: FieldKey | None = None
    tag: str | int | None = None
    grants: bool | tuple[FieldKey, ...] = False
    requests: bool | tuple[FieldKey, ...] = False
    references: tuple[FieldKey, ...] = ()

    def is_of(self, message: Any) -> bool:
        """Return whether `message`, decoded to plain values, is of this type."""
        return self.tag_place is None or (self.tag is not None and field_of(message, self.tag_place) == self.tag)


class Declared(msgspec.Struct, frozen=True, omit_defaults=True):
    """The declarations of one process at its cut, and the rules for the messages in flight to it.

    `references` are by holder: the process itself, or an object that it keeps. Holders can become garbage. The defaults
    are those of a process that declares nothing: it may always act.
    """

    waits: Waits | None = None
    references: dict[str, tuple[str, ...]] = {}
    active: bool = True
    messages: tuple[MessageRule, ...] = ()

    def __post_init__(self) -> None:
        """Reject a nesting that `declare` would not produce: recursive functions encode and show it."""
        level: list[Waits] = [self.waits] if self.waits is not None else []
        for _ in range(WAITS_DEPTH_MAX):
            level = [one for waits in level for one in waits.processes if isinstance(one, Waits)]
            if not level:
                return
        raise ValueError(f"it waits for Waits within Waits, more than {WAITS_DEPTH_MAX} deep")


WAITS_DEPTH_MAX = 100
NOTHING = Declared()
_SHOWN_MAX = 80
DECLARED_BYTES_MAX = 8 << 20
"""A process record is sent to the coordinator in one message, and all records of a snapshot share one log entry."""


class Declaring(Protocol):
    """The methods of a process that are called at its cut."""

    def waits_for(self) -> Waits | None: ...
    def references(self) -> Iterable[str] | Mapping[str, Iterable[str]]: ...
    def active(self) -> bool: ...


def declare(name: str, process: Declaring, rules: tuple[MessageRule, ...]) -> Declared | None:
    """Return the declarations of `process` at this moment; None if it has none."""
    waits, references, active = process.waits_for(), process.references(), process.active()
    check_finished(f"waits_for() of process {name!r}", waits)
    check_finished(f"active() of process {name!r}", active)
    active = bool(active)
    if waits is None and references == {} and active and not rules:
        return None
    if waits is not None:
        _require_waits(name, waits)
    return Declared(waits, _references(name, references), active, rules)


def require_small(name: str, declared: Declared | None) -> None:
    """Raise UsageError if the declarations of a process are too large for its record in the manifest."""
    if declared is not None and declared.references:
        size = len(msgspec.json.encode(declared))
        if size > DECLARED_BYTES_MAX:
            raise UsageError(
                f"references() of process {name!r} come to {size:,} bytes, and a snapshot takes "
                f"{DECLARED_BYTES_MAX:,}; declare larger units than single objects"
            )


def message_rules(types: Iterable[type]) -> tuple[MessageRule, ...]:
    """Return the declarations of message types; raise UsageError if one names a field that it does not have."""
    declaring = [(kind, getattr(kind, "declares", None)) for kind in types]
    return tuple(_rule(kind, declares) for kind, declares in declaring if isinstance(declares, Declares))


def field_of(message: Any, key: FieldKey) -> Any:
    """Return a field of a message that was decoded to plain values; None if it has no such field."""
    if isinstance(key, int):
        return message[key] if isinstance(message, list) and key < len(message) else None
    return message.get(key) if isinstance(message, dict) else None


def _rule(kind: Any, declares: Declares) -> MessageRule:
    if not issubclass(kind, msgspec.Struct):
        raise UsageError(f"{kind.__name__} declares what its messages do, but is no msgspec.Struct; make it one")
    config = kind.__struct_config__
    first = int(config.tag is not None)  # in an array, the tag comes before the fields
    fields = msgspec.structs.fields(kind)
    places: dict[str, FieldKey] = {
        field.name: number if config.array_like else field.encode_name for number, field in enumerate(fields, first)
    }

    def chosen(names: str | Sequence[str]) -> tuple[FieldKey, ...]:
        wanted = (names,) if isinstance(names, str) else tuple(names)
        for name in wanted:
            if name not in places:
                known = ", ".join(places) or "none"
                raise UsageError(f"{kind.__name__} declares the field {name!r}, which it has not; fields: {known}")
        return tuple(places[name] for name in wanted)

    def either(names: bool | str | Sequence[str]) -> bool | tuple[FieldKey, ...]:
        return names if isinstance(names, bool) else chosen(names)

    tag_place: FieldKey | None = None
    if config.tag is not None:
        tag_place = 0 if config.array_like else config.tag_field
    return MessageRule(
        tag_place, config.tag, either(declares.grants), either(declares.requests), chosen(declares.references)
    )


def _require_waits(name: str, waits: Any, depth: int = 1) -> None:
    """Raise UsageError if `waits` does not consist of Waits and process names."""
    problem = None
    if not isinstance(waits, Waits) or not isinstance(waits.processes, tuple):
        problem = f"returns {_shown(waits)}"
    elif depth > WAITS_DEPTH_MAX:
        problem = f"returns Waits within Waits, more than {WAITS_DEPTH_MAX} deep"
    if problem is not None:
        raise UsageError(f"waits_for() of process {name!r} {problem}; return None, or such as Waits.all('b', 'c')")
    for member in waits.processes:
        if not isinstance(member, str):
            _require_waits(name, member, depth + 1)


def _references(name: str, found: Iterable[str] | Mapping[str, Iterable[str]]) -> dict[str, tuple[str, ...]]:
    by_holder = found if isinstance(found, Mapping) else {name: found}
    references: dict[str, tuple[str, ...]] = {}
    for holder, names in by_holder.items():
        if not isinstance(holder, str) or isinstance(names, str) or not isinstance(names, Iterable):
            raise _no_references(name, found)
        held = tuple(names)
        if not all(isinstance(one, str) for one in held):
            raise _no_references(name, found)
        # The process may appear twice: under its name, and under "".
        references[holder or name] = references.get(holder or name, ()) + held
    return references


def _no_references(name: str, found: object) -> UsageError:
    remedy = "return a list of names, or lists of names by who holds them"
    return UsageError(f"references() of process {name!r} returns {_shown(found)}; {remedy}")


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= _SHOWN_MAX else f"{text[:_SHOWN_MAX]}..."
