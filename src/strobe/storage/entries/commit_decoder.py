"""Decodes many commits of a log quickly by sharing their common parts.

Most of a manifest repeats the previous one byte for byte: the view, and empty channels. For bytes that were decoded
before, the decoder returns the same object again. Callers can therefore cache derived values by object
(`OncePerObject`).
"""

from collections.abc import Callable, Iterator, Mapping
from functools import cached_property
from typing import Any, Generic, TypeVar

import msgspec

from strobe.names import Name
from strobe.protocol.values.bounds import Count, Digest
from strobe.protocol.values.log_entries import Commit, FrontierRecord, Manifest, ProcessRecord, Section
from strobe.protocol.values.view import View
from strobe.storage.entries.log_file import decode_document

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


def _document_with(record: Any) -> Any:
    manifest = _with_raw(Manifest, view=msgspec.Raw, processes=dict.__class_getitem__((Name, record)))
    commit = _with_raw(Commit, manifest=manifest)
    return msgspec.defstruct("_Document", [("position", Count), ("previous", Digest), ("entry", commit)], frozen=True)


_Document = _document_with(_with_raw(ProcessRecord, in_flight=msgspec.Raw))
_DocumentOfEncodedEnds = _document_with(
    _with_raw(ProcessRecord, in_flight=msgspec.Raw, sent=msgspec.Raw, received=msgspec.Raw)
)
_decode_ends = msgspec.json.Decoder(dict[str, FrontierRecord]).decode

_SENT, _RECEIVED, _IN_FLIGHT = map(ProcessRecord.__struct_fields__.index, ("sent", "received", "in_flight"))
_VIEW, _PROCESSES = (Manifest.__struct_fields__.index(name) for name in ("view", "processes"))


class EncodedEnds(Mapping[str, FrontierRecord]):
    """The frontiers of a process, encoded in `raw`. They are decoded and validated on first access."""

    def __init__(self, raw: bytes) -> None:
        self.raw = raw

    @cached_property
    def _decoded(self) -> dict[str, FrontierRecord]:
        return _decode_ends(self.raw)

    def __getitem__(self, channel: str) -> FrontierRecord:
        return self._decoded[channel]

    def __iter__(self) -> Iterator[str]:
        return iter(self._decoded)

    def __len__(self) -> int:
        return len(self._decoded)


class CommitDecoder:
    """Decodes commits of one store. Use it in one thread, and do not modify its results.

    With `encoded_ends`, `sent` and `received` are `EncodedEnds`, for callers that rarely need them decoded.
    """

    def __init__(self, *, encoded_ends: bool = False) -> None:
        self._encoded_ends = encoded_ends
        document: Any = _DocumentOfEncodedEnds if encoded_ends else _Document
        self._decoder: msgspec.json.Decoder[Any] = msgspec.json.Decoder(document)
        self._views = _Shared(msgspec.json.Decoder(View).decode)
        self._sections = _Shared(msgspec.json.Decoder(dict[str, Section]).decode)

    def decode(self, raw: bytes, url: str, position: int) -> Commit:
        """Return the commit in `raw`, entry `position` of the log, verified on its own; raise StoreError if invalid."""
        document, _ = decode_document(self._decode, raw, url, position, None)
        commit: Commit = document.entry
        return commit

    def _decode(self, raw: bytes) -> Any:
        document = self._decoder.decode(raw)
        entry = document.entry
        values = list(msgspec.structs.astuple(entry.manifest))
        values[_VIEW] = self._views.get("", values[_VIEW])
        values[_PROCESSES] = {name: self._record(name, record) for name, record in values[_PROCESSES].items()}
        commit = Commit(entry.snapshot, Manifest(*values), entry.at_us)
        return _Decoded(document.position, document.previous, commit)

    def _record(self, name: str, record: Any) -> ProcessRecord:
        values = list(msgspec.structs.astuple(record))
        values[_IN_FLIGHT] = self._sections.get(name, values[_IN_FLIGHT])
        if self._encoded_ends:
            values[_SENT], values[_RECEIVED] = EncodedEnds(bytes(values[_SENT])), EncodedEnds(bytes(values[_RECEIVED]))
        return ProcessRecord(*values)


class _Decoded(msgspec.Struct, frozen=True):
    position: int
    previous: str
    entry: Commit


class _Shared(Generic[Made]):
    """Caches decoded objects by their bytes."""

    def __init__(self, make: Callable[[bytes], Made]) -> None:
        self._make = make
        self._made: dict[bytes, Made] = {}
        self._last: dict[str, tuple[bytes, Made]] = {}

    def get(self, whose: str, raw: msgspec.Raw) -> Made:
        """Return the object for `raw`. If `raw` equals the last bytes for `whose`, no hash lookup is needed."""
        data = bytes(raw)
        last = self._last.get(whose)
        if last is not None and last[0] == data:
            return last[1]
        if len(self._made) >= _KEPT_MAX:
            self._made.clear()
            self._last.clear()
        found = self._made.get(data)
        if found is None:
            found = self._made[data] = self._make(data)
        self._last[whose] = data, found
        return found


class OncePerObject(Generic[Thing, Made]):
    """Caches a derived value by object identity, because comparing objects costs more."""

    def __init__(self, make: Callable[[Thing], Made], kept_max: int = _KEPT_MAX) -> None:
        self._make = make
        self._kept_max = kept_max
        self._made: dict[int, tuple[Thing, Made]] = {}

    def __getitem__(self, thing: Thing) -> Made:
        found = self._made.get(id(thing))
        if found is None:
            if len(self._made) >= self._kept_max:
                self._made.clear()
            # Keep the object as well: otherwise a new object could get the same id.
            found = self._made[id(thing)] = thing, self._make(thing)
        return found[1]
