"""Migrations: functions that turn stored states of older versions into states of the current type (R3).

A state's type lists them: `migrations = {1: up_to_2, 2: up_to_3}` makes it version 3. Each function takes the state of
its version as plain values (dicts, lists, numbers, text) and returns that of the next. A type without migrations has
version 1. The version is stored with each state. For a `KeyedState`, the type of its values counts, and each value is
migrated.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any

import msgspec
from msgspec import inspect

from strobe.encodable import UNENCODABLE, refusal
from strobe.errors import UsageError, UserCodeFailed
from strobe.handlers import Shape, check_finished, check_function, location
from strobe.known_fields import require_known
from strobe.user_code import RAISED, explain, is_failure

Migration = Callable[[Any], Any]

_ATTRIBUTE = "migrations"
_encode = msgspec.msgpack.Encoder().encode
_plain = msgspec.msgpack.Decoder().decode


@lru_cache(maxsize=256)
def version_of_type(kind: Any) -> int:
    """Return the current version of states of type `kind`; raise UsageError if its migrations are not valid."""
    for part in _classes_within(kind):
        if part is not kind and _declared(part) not in (None, _declared(kind)):
            raise UsageError(
                f"{_name(part)} declares migrations, and is only a part of {_name(kind)}; declare them in the type "
                "that capture() returns, or in the type of the values of its KeyedState"
            )
    return len(_migrations(kind)) + 1


def migrate(what: str, kind: Any, version: int, data: bytes | memoryview | msgspec.Raw) -> bytes:
    """Return `data`, a MessagePack value of an older `version` of `kind`, as one of the current version.

    `what` names the value in errors. Raise UserCodeFailed if a migration fails, or if its result is no `kind`. Raise
    UsageError if the version is newer than this program.
    """
    steps, decode = _plan(kind, version)
    if steps is None:
        raise UsageError(
            f"{what} is of version {version} of {_name(kind)}, written by a newer program: this one knows versions up "
            f"to {version_of_type(kind)}"
        )
    value = _plain(data)
    for number, step in enumerate(steps, version):
        value = _migrated(f"{what}: the migration of {_name(kind)} from version {number}", step, value)
    try:
        encoded = _encode(value)
        decode(encoded)
        require_known(encoded, kind)
    except msgspec.ValidationError as error:
        raise UserCodeFailed(f"{_last(what, kind, steps)}: what it returned is no {_name(kind)}: {error}") from error
    except UNENCODABLE as error:
        returned = f"{_last(what, kind, steps)}: what it returned"
        raise UserCodeFailed(str(refusal(returned, value, error))) from error
    return encoded


def _migrated(what: str, step: Migration, value: Any) -> Any:
    try:
        returned = step(value)
        if type(returned) is not dict:
            check_finished(what, returned)
    except RAISED as error:
        if not is_failure(error):
            raise
        raise UserCodeFailed(f"{what} fails: {explain(error)}") from error
    if returned is None:
        raise UserCodeFailed(f"{what} returned None{location(step)}; return the state of the next version")
    return returned


def _last(what: str, kind: Any, steps: Sequence[Migration]) -> str:
    return f"{what}: {_name(kind)}.{_ATTRIBUTE}[{version_of_type(kind) - 1}]{location(steps[-1])}"


@lru_cache(maxsize=64)
def _plan(kind: Any, version: int) -> tuple[tuple[Migration, ...] | None, Callable[[bytes], Any]]:
    """Return the migrations from `version` of `kind`, None if it is a newer one, and the decoder of the result."""
    current = version_of_type(kind)
    declared = _migrations(kind)
    steps = tuple(declared[number] for number in range(version, current)) if version <= current else None
    return steps, msgspec.msgpack.Decoder(kind).decode


def refuse_migrations(kind: Any) -> None:
    """Raise UsageError if the message type `kind` declares migrations."""
    if _declared(kind) is not None:
        raise UsageError(
            f"the message type {_name(kind)} declares migrations, and messages have none: those in flight are stored "
            "as they were sent. Give a new field a default; for any other change add a new message type, and keep the "
            "old one in `messages` while there are snapshots that have it in flight"
        )


def _migrations(kind: Any) -> Mapping[int, Migration]:
    """Return the migrations that `kind` declares, after checking them."""
    declared = _declared(kind)
    if declared is None:
        return {}
    what = f"{_name(kind)}.{_ATTRIBUTE}"
    example = "{1: up_to_2, 2: up_to_3}"
    if not isinstance(declared, Mapping):
        raise UsageError(f"{what} is a {type(declared).__name__}; write {_ATTRIBUTE} = {example}")
    if set(declared) != set(range(1, len(declared) + 1)) or any(type(key) is not int for key in declared):
        found = ", ".join(map(repr, declared))
        raise UsageError(f"{what} has the keys {found}; number the versions from 1 without gaps: {example}")
    for version, function in declared.items():
        check_function(f"{what}[{version}]", function, Shape(f"up_to_{version + 1}", ("state",)))
    return declared


def _declared(kind: Any) -> Any:
    """Return what `kind` declares as its migrations; None if nothing, or if it has a field of that name."""
    fields = (*getattr(kind, "__struct_fields__", ()), *getattr(kind, "__dataclass_fields__", ()))
    return None if _ATTRIBUTE in fields else getattr(kind, _ATTRIBUTE, None)


def _classes_within(kind: Any) -> Iterator[Any]:
    """Yield the classes with fields in type `kind`; none if msgspec does not know the type."""
    try:
        waiting: list[Any] = [inspect.type_info(kind)]
    except TypeError:
        return
    seen: dict[int, Any] = {}
    while waiting:
        info = waiting.pop()
        if isinstance(info, tuple):
            waiting += info
        elif isinstance(info, inspect.Type | inspect.Field) and id(info) not in seen:
            seen[id(info)] = info
            if (found := getattr(info, "cls", None)) is not None:
                yield found
            waiting += [getattr(info, name) for name in info.__struct_fields__]


def _name(kind: Any) -> str:
    return getattr(kind, "__name__", None) or str(kind)
