"""Commits decoded one after the other, sharing what they have in common: for whoever reads many of them.

Most of a manifest is said again by the next one, byte for byte: the view, and where nothing was in flight, that nothing
was. What was decoded once from some bytes is given again for the same bytes, as the same object; so whoever derives
something from it can remember that by the object (`OncePerObject`).
"""

from collections.abc import Callable
from typing import Any, Generic, TypeVar

import msgspec

from strobe.protocol.log import Commit, Manifest, ProcessRecord, Section
from strobe.protocol.view import View
from strobe.storage.entries import decode_document

_KEPT_MAX = 4096

Thing = TypeVar("Thing")
Made = TypeVar("Made")


def _with_raw(struct: type[msgspec.Struct], **types: Any) -> Any:
    """Return a struct like `struct`, with other types for some of its fields."""
    fields = [
        (field.name, types.get(field.name, field.type))
        if field.required
        else (field.name, types.get(field.name, field.type), _default(field))
        for field in msgspec.structs.fields(struct)
    ]
    return msgspec.defstruct(f"Raw{struct.__name__}", fields, frozen=True, tag=struct.__struct_config__.tag)


def _default(field: msgspec.structs.FieldInfo) -> Any:
    if field.default is not msgspec.NODEFAULT:
        return field.default
    return msgspec.field(default_factory=field.default_factory)


_RawRecord = _with_raw(ProcessRecord, in_flight=msgspec.Raw)
_RawManifest = _with_raw(Manifest, view=msgspec.Raw, processes=dict.__class_getitem__((str, _RawRecord)))
_RawCommit = _with_raw(Commit, manifest=_RawManifest)
_Document: Any = msgspec.defstruct(
    "_Document", [("position", int), ("previous", str), ("entry", _RawCommit)], frozen=True
)

_IN_FLIGHT = ProcessRecord.__struct_fields__.index("in_flight")
_VIEW, _PROCESSES = (Manifest.__struct_fields__.index(name) for name in ("view", "processes"))


class CommitDecoder:
    """Decodes commits of one store. It is for one thread, and what it returns is not to be changed."""

    def __init__(self) -> None:
        self._decoder: msgspec.json.Decoder[Any] = msgspec.json.Decoder(_Document)
        self._views = _Shared(msgspec.json.Decoder(View).decode)
        self._sections = _Shared(msgspec.json.Decoder(dict[str, Section]).decode)

    def decode(self, raw: bytes, url: str, position: int) -> Commit:
        """Return the commit in `raw`, entry `position` of the log, verified by itself; raise StoreError without one."""
        document, _ = decode_document(self._decode, raw, url, position, None)
        commit: Commit = document.entry
        return commit

    def _decode(self, raw: bytes) -> Any:
        document = self._decoder.decode(raw)
        entry = document.entry
        values = list(msgspec.structs.astuple(entry.manifest))
        values[_VIEW] = self._views[values[_VIEW]]
        values[_PROCESSES] = {name: self._record(record) for name, record in values[_PROCESSES].items()}
        commit = Commit(entry.snapshot, Manifest(*values), entry.at_us)
        return _Decoded(document.position, document.previous, commit)

    def _record(self, record: Any) -> ProcessRecord:
        values = list(msgspec.structs.astuple(record))
        values[_IN_FLIGHT] = self._sections[values[_IN_FLIGHT]]
        return ProcessRecord(*values)


class _Decoded(msgspec.Struct, frozen=True):
    position: int
    previous: str
    entry: Commit


class _Shared(Generic[Made]):
    """What was made of some bytes, for the next who has the same bytes."""

    def __init__(self, make: Callable[[bytes], Made]) -> None:
        self._make = make
        self._made: dict[bytes, Made] = {}

    def __getitem__(self, raw: msgspec.Raw) -> Made:
        data = bytes(raw)
        found = self._made.get(data)
        if found is None:
            if len(self._made) >= _KEPT_MAX:
                self._made.clear()
            found = self._made[data] = self._make(data)
        return found


class OncePerObject(Generic[Thing, Made]):
    """Remembers what was made of an object, by the object itself and not by what it equals: comparing costs more."""

    def __init__(self, make: Callable[[Thing], Made], kept_max: int = _KEPT_MAX) -> None:
        self._make = make
        self._kept_max = kept_max
        self._made: dict[int, tuple[Thing, Made]] = {}

    def __getitem__(self, thing: Thing) -> Made:
        found = self._made.get(id(thing))
        if found is None:
            if len(self._made) >= self._kept_max:
                self._made.clear()
            # The object is kept as well: another one could get its number otherwise.
            found = self._made[id(thing)] = thing, self._make(thing)
        return found[1]
