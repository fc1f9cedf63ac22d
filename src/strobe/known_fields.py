"""Finds fields in encoded data that its type does not have (E9).

msgspec drops such fields when it decodes, unless a struct has `forbid_unknown_fields`. In a restored state that means
data loss: a renamed field with a default comes back as its default. So states and messages in flight are decoded here.
An unknown field is an error that names it, at any depth and whatever the user's structs allow.

The type is compiled once into finders. These decode only the parts of the data that can hold a struct, a dataclass or a
TypedDict, and skip the rest.
"""

from collections.abc import Iterable
from functools import lru_cache
from typing import Any, NamedTuple

import msgspec
from msgspec import inspect

_map = msgspec.msgpack.Decoder(dict[Any, msgspec.Raw]).decode
_array = msgspec.msgpack.Decoder(list[msgspec.Raw]).decode
_plain = msgspec.msgpack.Decoder().decode

_KEYED = (inspect.StructType, inspect.DataclassType, inspect.TypedDictType)
_ITEMS = (inspect.ListType, inspect.SetType, inspect.FrozenSetType, inspect.VarTupleType, inspect.CollectionType)


class UnknownField(NamedTuple):
    """A field that `owner` does not have; `path` leads to it from the start of the search."""

    owner: str
    path: str

    def below(self, step: str) -> "UnknownField":
        """Return it with the path extended by the step that leads to its parent."""
        return UnknownField(self.owner, step + self.path)


def decode_known(data: bytes | memoryview | msgspec.Raw, kind: Any) -> Any:
    """Return MessagePack `data` as `kind`; raise msgspec.ValidationError also for unknown fields."""
    value = msgspec.msgpack.decode(data, type=kind)
    require_known(data, kind)
    return value


def require_known(data: bytes | memoryview | msgspec.Raw, kind: Any) -> None:
    """Raise msgspec.ValidationError if `data`, which decodes as `kind`, has an unknown field."""
    finder = finder_of(kind)
    found = finder.find(data) if finder is not None else None
    if found is not None:
        path = f"{getattr(kind, '__name__', kind)}{found.path}"
        raise msgspec.ValidationError(f"`{path}` is in the data, and {found.owner} has no such field")


class Finder:
    """Finds unknown fields in data of one type."""

    is_map = False

    def find(self, data: Any) -> UnknownField | None:
        """Return the first unknown field in `data`, which is known to decode as this finder's type."""
        raise NotImplementedError


class _Fields(Finder):
    """A struct, dataclass or TypedDict that is encoded as a map."""

    is_map = True

    def __init__(self, owner: str, tag_field: str | None, tag: Any) -> None:
        self.owner, self.tag_field, self.tag = owner, tag_field, tag
        self.fields: dict[str, Finder | None] = {} if tag_field is None else {tag_field: None}

    def find(self, data: Any) -> UnknownField | None:
        fields = self.fields
        for name, value in _map(data).items():
            if name not in fields:
                return UnknownField(self.owner, f".{name}")
            finder = fields[name]
            if finder is not None and (found := finder.find(value)) is not None:
                return found.below(f".{name}")
        return None


class _Places(Finder):
    """A struct encoded as an array, or a tuple: each index has its own type. Only a struct accepts extra items."""

    def __init__(self, owner: str | None, tag: Any = None) -> None:
        self.owner, self.tag = owner, tag
        self.places: list[tuple[str, Finder | None]] = []

    def find(self, data: Any) -> UnknownField | None:
        first = int(self.tag is not None)
        values = _array(data)[first:]
        if self.owner is not None and len(values) > len(self.places):
            return UnknownField(self.owner, f"[{len(self.places) + first}]")
        for (step, finder), value in zip(self.places, values, strict=False):
            if finder is not None and (found := finder.find(value)) is not None:
                return found.below(step)
        return None


class _Items(Finder):
    """Many values of one type, in an array or a map."""

    def __init__(self, item: Finder, is_map: bool) -> None:
        self.item, self.is_map = item, is_map

    def find(self, data: Any) -> UnknownField | None:
        values: Iterable[tuple[Any, Any]] = _map(data).items() if self.is_map else enumerate(_array(data))
        for key, value in values:
            if (found := self.item.find(value)) is not None:
                return found.below(f"[{key!r}]")
        return None


class _Union(Finder):
    """One of several types, selected by the form of the data (map or array) and by its tag."""

    def __init__(self, members: list[Finder]) -> None:
        self.members = members

    def find(self, data: Any) -> UnknownField | None:
        kind = _kind(data)
        if kind is None:
            return None
        member = next((one for one in self.members if one.is_map is (kind is dict) and _has_tag(one, data)), None)
        return member.find(data) if member is not None else None


def _has_tag(member: Finder, data: Any) -> bool:
    """Return whether `data` has the tag of `member`, or `member` has no tag."""
    tag = None
    if isinstance(member, _Fields) and member.tag_field is not None:
        tag = _map(data).get(member.tag_field)
    elif isinstance(member, _Places) and member.tag is not None:
        tag = next(iter(_array(data)), None)
    else:
        return True
    return tag is not None and bool(_plain(tag) == member.tag)


@lru_cache(maxsize=256)
def finder_of(kind: Any) -> Finder | None:
    """Return the finder for data of type `kind`; None if such data cannot have unknown fields."""
    return _Compiler().compile(inspect.type_info(kind))


class _Compiler:
    """Compiles types to finders; a recursive type is compiled once."""

    def __init__(self) -> None:
        self._made: dict[int, Finder] = {}  # by the identity of the type description

    def compile(self, info: inspect.Type) -> Finder | None:
        if isinstance(info, inspect.Metadata):
            return self.compile(info.type)
        if isinstance(info, inspect.UnionType):
            members = [finder for one in info.types if (finder := self.compile(one)) is not None]
            return _Union(members) if members else None
        if isinstance(info, _KEYED):
            return self._made.get(id(info)) or self._fields(info)
        if isinstance(info, inspect.DictType):
            item = self.compile(info.value_type)
            return _Items(item, True) if item is not None else None
        if isinstance(info, _ITEMS):
            item = self.compile(info.item_type)
            return _Items(item, False) if item is not None else None
        return self._tuple(info)

    def _fields(self, info: Any) -> Finder:
        owner = info.cls.__name__
        tag = getattr(info, "tag", None)
        if getattr(info, "array_like", False):
            placed = self._made[id(info)] = _Places(owner, tag)
            placed.places += [(f".{field.name}", self.compile(field.type)) for field in info.fields]
            return placed
        keyed = self._made[id(info)] = _Fields(owner, info.tag_field if tag is not None else None, tag)
        keyed.fields |= {field.encode_name: self.compile(field.type) for field in info.fields}
        return keyed

    def _tuple(self, info: inspect.Type) -> Finder | None:
        if isinstance(info, inspect.TupleType):
            items = [(f"[{place}]", self.compile(item)) for place, item in enumerate(info.item_types)]
        elif isinstance(info, inspect.NamedTupleType):
            items = [(f".{field.name}", self.compile(field.type)) for field in info.fields]
        else:
            return None
        finder = _Places(None)
        finder.places = items
        return finder if any(item is not None for _, item in items) else None


def _kind(data: Any) -> type | None:
    """Return dict or list for a MessagePack map or array; None for anything else."""
    first = memoryview(data)[0]
    if first & 0xF0 == 0x80 or first in (0xDE, 0xDF):
        return dict
    return list if first & 0xF0 == 0x90 or first in (0xDC, 0xDD) else None
