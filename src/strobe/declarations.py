"""What processes and messages declare of themselves, as users write it and as snapshots hold it (G2).

A process says, at its cut, whom it waits for, what it refers to and whether it is active. A type of messages says once
what its messages do: whether they grant what somebody waits for, ask for it, or carry references. Both are recorded
with the snapshot as plain data, so that a stable predicate can be evaluated from stored bytes alone, without the
classes; nothing is done for a message when it is sent.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Protocol

import msgspec

from strobe.errors import UsageError
from strobe.handlers import check_finished


class Waits(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a process waits for before it can proceed: all of these processes, or any one of them.

    A member may be such a wait itself: `Waits.any("a", Waits.all("b", "c"))`. One that `times_out` ends by itself.
    """

    processes: tuple["str | Waits", ...]
    any_suffices: bool = False
    times_out: bool = False

    @classmethod
    def all(cls, *processes: "str | Waits", times_out: bool = False) -> "Waits":
        return cls(processes, False, times_out)

    @classmethod
    def any(cls, *processes: "str | Waits", times_out: bool = False) -> "Waits":
        return cls(processes, True, times_out)

    def __str__(self) -> str:
        members = (f"({one})" if isinstance(one, Waits) else one for one in self.processes)
        return (" or " if self.any_suffices else " and ").join(members) + (", for a time" if self.times_out else "")


class Declares(msgspec.Struct, frozen=True):
    """What the messages of a type do: `declares = Declares(grants=True)` in the body of the struct.

    `grants`: the receiver need not wait for the sender any more, or for the processes that the named fields hold.
    `requests`: the sender, or the processes that the named fields hold, have begun to wait for the receiver.
    `references`: the fields with the names of what a message refers to, each one name or a list of them.
    """

    grants: bool | str | Sequence[str] = False
    requests: bool | str | Sequence[str] = False
    references: str | Sequence[str] = ()


StorageBackend = str | int
"""Where a message has a field: under a name, or (of one that is encoded as an array) at a number."""


class MessageRule(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a type of messages declares, as a snapshot holds it; `tag` at `tag_place` tells its messages from others.

    Without a `tag` it is the only type there is.
    """

    tag_place: StorageBackend | None = None
    tag: str | int | None = None
    grants: bool | tuple[StorageBackend, ...] = False
    requests: bool | tuple[StorageBackend, ...] = False
    references: tuple[StorageBackend, ...] = ()

    def is_of(self, message: Any) -> bool:
        """Tell whether `message`, decoded to plain values, is of this type."""
        return self.tag_place is None or (self.tag is not None and field_of(message, self.tag_place) == self.tag)


class Declared(msgspec.Struct, frozen=True, omit_defaults=True):
    """What one process declares at its cut, and by which rules the messages in flight to it are read.

    `references` are by holder: the process itself, or a thing that it keeps; holders are what can become garbage. The
    defaults are those of a process that declares nothing: it may always act.
    """

    waits: Waits | None = None
    references: dict[str, tuple[str, ...]] = {}
    active: bool = True
    messages: tuple[MessageRule, ...] = ()

    def __post_init__(self) -> None:
        """Refuse what `declare` would not have made: it is encoded again, and shown, by functions that recurse."""
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
"""A record travels to the coordinator in one message, and stands in one entry of the log with all the others."""


class Declaring(Protocol):
    """What is asked of a process at its cut."""

    def waits_for(self) -> Waits | None: ...
    def references(self) -> Iterable[str] | Mapping[str, Iterable[str]]: ...
    def active(self) -> bool: ...


def declare(name: str, process: Declaring, rules: tuple[MessageRule, ...]) -> Declared | None:
    """Return what `process` declares now; None where that is nothing."""
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
    """Raise UsageError where what a process declares is too large to go with its record, which is in the manifest."""
    if declared is not None and declared.references:
        size = len(msgspec.json.encode(declared))
        if size > DECLARED_BYTES_MAX:
            raise UsageError(
                f"references() of process {name!r} come to {size:,} bytes, and a snapshot takes "
                f"{DECLARED_BYTES_MAX:,}; declare larger units than single objects"
            )


def message_rules(types: Iterable[type]) -> tuple[MessageRule, ...]:
    """Return what types of messages declare; raise UsageError where one names a field that it does not have."""
    declaring = [(kind, getattr(kind, "declares", None)) for kind in types]
    return tuple(_rule(kind, declares) for kind, declares in declaring if isinstance(declares, Declares))


def field_of(message: Any, backend: StorageBackend) -> Any:
    """Return a field of a message that was decoded to plain values; None where it has none."""
    if isinstance(backend, int):
        return message[backend] if isinstance(message, list) and backend < len(message) else None
    return message.get(backend) if isinstance(message, dict) else None


def _rule(kind: Any, declares: Declares) -> MessageRule:
    if not issubclass(kind, msgspec.Struct):
        raise UsageError(f"{kind.__name__} declares what its messages do, but is no msgspec.Struct; make it one")
    config = kind.__struct_config__
    first = int(config.tag is not None)  # in an array, the tag comes before the fields
    fields = msgspec.structs.fields(kind)
    places: dict[str, StorageBackend] = {
        field.name: number if config.array_like else field.encode_name for number, field in enumerate(fields, first)
    }

    def chosen(names: str | Sequence[str]) -> tuple[StorageBackend, ...]:
        wanted = (names,) if isinstance(names, str) else tuple(names)
        for name in wanted:
            if name not in places:
                known = ", ".join(places) or "none"
                raise UsageError(f"{kind.__name__} declares the field {name!r}, which it has not; fields: {known}")
        return tuple(places[name] for name in wanted)

    def either(names: bool | str | Sequence[str]) -> bool | tuple[StorageBackend, ...]:
        return names if isinstance(names, bool) else chosen(names)

    tag_place: StorageBackend | None = None
    if config.tag is not None:
        tag_place = 0 if config.array_like else config.tag_field
    return MessageRule(
        tag_place, config.tag, either(declares.grants), either(declares.requests), chosen(declares.references)
    )


def _require_waits(name: str, waits: Any, depth: int = 1) -> None:
    """Raise UsageError where what a process waits for is not made of Waits and names of processes."""
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
        # The process may be there twice: under its name, and under none.
        references[holder or name] = references.get(holder or name, ()) + held
    return references


def _no_references(name: str, found: object) -> UsageError:
    remedy = "return a list of names, or lists of names by who holds them"
    return UsageError(f"references() of process {name!r} returns {_shown(found)}; {remedy}")


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= _SHOWN_MAX else f"{text[:_SHOWN_MAX]}..."
