"""The file of one log entry: the entry, its position and term, and the checksum of the previous file (S1, S2).

Each file contains the checksum of its predecessor, so readers detect a missing, swapped or replaced entry. Entry 0
refers to the header of the store, so entries of one store do not fit into another.
"""

import re
from collections.abc import Callable
from typing import Any, NamedTuple

import msgspec

from strobe.errors import EntryUnreadable, StoreCorrupt, UsageError
from strobe.protocol.values.bounds import Count, Digest, PrintedId, ViewNumber
from strobe.protocol.values.ids import SnapshotId
from strobe.protocol.values.log_entries import (
    Abort,
    Begin,
    Commit,
    Entry,
    EpochStart,
    Fence,
    Manifest,
    Pin,
    ReadEntry,
    Release,
    Remove,
    Term,
    ViewChange,
)
from strobe.protocol.values.view import View
from strobe.storage.files.checksummed_json import UNSEALED, check_seal, seal
from strobe.storage.files.layout import LOG

_NAME = re.compile(r"(\d{20})\.json")
_COMMIT = re.compile(
    rb'\{"blake3":"[0-9a-f]{64}","position":(\d{1,18}),"previous":"([0-9a-f]{64})",'
    rb'(?:"term":(\d{1,18}),)?"entry":\{"type":"commit","snapshot":"([^"\\]+)","manifest":\{'
    rb'"protocol":"[^"\\]*","initiators":\[[^\]\\]*\],"view":\{"number":(\d{1,9}),'
)
# With the leading comma, this cannot match inside a string, because quotation marks in strings are escaped. The view,
# which comes before it, has no member of this name.
_EPOCH = re.compile(rb',"epoch":(\d{1,18}),')


class _Document(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    blake3: Digest
    position: Count
    previous: Digest
    term: Count = 0
    entry: Entry


class _ViewOutline(msgspec.Struct, frozen=True):
    number: ViewNumber


class _ManifestOutline(msgspec.Struct, frozen=True):
    epoch: Count
    view: _ViewOutline


class _CommitOutline(msgspec.Struct, frozen=True, tag="commit"):
    snapshot: PrintedId
    manifest: _ManifestOutline
    at_us: Count

    def commit(self) -> Commit:
        view = View(self.manifest.view.number, (), ())
        return Commit(self.snapshot, Manifest("", (), view, self.manifest.epoch, 0, 0, {}), self.at_us)


class _DocumentOutline(msgspec.Struct, frozen=True, kw_only=True):
    blake3: Digest
    position: Count
    previous: Digest
    term: Count = 0
    entry: Begin | _CommitOutline | Abort | ViewChange | EpochStart | Pin | Remove | Release | Term | Fence


class DecodedEntry(NamedTuple):
    """An entry, the checksum of its file, and the highest term that its writer had read."""

    entry: ReadEntry
    checksum: str
    term: int


_decoder = msgspec.json.Decoder(_Document)
_outline_decoder = msgspec.json.Decoder(_DocumentOutline)


def entry_name(position: int) -> str:
    """Return the name of entry `position` within the store."""
    return f"{LOG}/{position:020d}.json"


def entry_position(name: str) -> int | None:
    """Return the position of the entry in the file `name` of the log directory, or None if it is not an entry."""
    match = _NAME.fullmatch(name)
    return int(match[1]) if match else None


def encode_entry(entry: Entry, position: int, previous: str, term: int = 0) -> tuple[bytes, str]:
    """Return the bytes of the file and its checksum; raise UsageError if the entry could not be read back."""
    _check_values(entry)
    document = _Document(blake3=UNSEALED, position=position, previous=previous, term=term, entry=entry)
    try:
        raw, checksum = seal(msgspec.json.encode(document) + b"\n")
        # One unreadable entry would make the whole log permanently unreadable. JSON has no infinite numbers.
        if _decoder.decode(raw).entry == entry:
            return raw, checksum
    except (ValueError, TypeError) as error:
        raise UsageError(f"log entry {position} cannot be written as JSON: {error}") from error
    raise UsageError(f"log entry {position} cannot be written as JSON without changing it: {entry}")


def decode_entry(raw: bytes, url: str, position: int, previous: str | None) -> DecodedEntry:
    """Return the entry; with `previous` None, the checksum chain is not checked."""
    document, checksum = decode_document(_decoder.decode, raw, url, position, previous)
    return DecodedEntry(document.entry, checksum, document.term)


def decode_outline(raw: bytes, url: str, position: int, previous: str | None) -> DecodedEntry:
    """Like `decode_entry`, but decode only the parts of a commit that `LogState` needs, and skip most of its bytes."""
    document, checksum = decode_document(_find_outline, raw, url, position, previous)
    entry = document.entry
    return DecodedEntry(entry.commit() if isinstance(entry, _CommitOutline) else entry, checksum, document.term)


def _find_outline(raw: bytes) -> _DocumentOutline:
    """Return the outline of an entry. For a commit in our own encoding, skip everything after its epoch.

    The checksum covers every byte and was verified, so the rest comes from the same writer as the beginning.
    """
    begin = _COMMIT.match(raw)
    epoch = _EPOCH.search(raw, begin.end()) if begin else None
    if begin is None or epoch is None:
        return _outline_decoder.decode(raw)
    position, previous, term, snapshot, view = begin.groups()
    return _DocumentOutline(
        blake3="",
        position=int(position),
        previous=previous.decode(),
        term=int(term or 0),
        # The commit time is at the end of the entry. The outline does not need it.
        entry=_CommitOutline(snapshot.decode(), _ManifestOutline(int(epoch[1]), _ViewOutline(int(view))), 0),
    )


def decode_document(
    decode: Callable[[bytes], Any], raw: bytes, url: str, position: int, previous: str | None
) -> tuple[Any, str]:
    """Return the document that `decode` makes of `raw`, and its checksum, after all checks of an entry."""
    place = entry_name(position)
    checksum = check_seal(raw, url, place)
    try:
        document = decode(raw)
        _check_values(document.entry)
    except (ValueError, UsageError, RecursionError) as error:
        raise EntryUnreadable(
            url, f"{place}: its checksum holds, but it cannot be read ({error}); a newer Strobe may have written it"
        ) from error
    if document.position != position:
        raise StoreCorrupt(url, place, f"holds entry {document.position}: files of the log were renamed")
    if previous is not None and document.previous != previous:
        before = entry_name(position - 1) if position else "the header strobe.json"
        raise StoreCorrupt(url, place, f"does not follow {before}: one of the two was replaced")
    return document, checksum


def _check_values(entry: Entry | _CommitOutline) -> None:
    """Check constraints that the types do not express: valid snapshot ids and consistent views."""
    ids: tuple[str | None, ...] = ()
    match entry:
        case Begin():
            entry.check()
        case Commit():
            ids = (entry.snapshot, entry.manifest.parent, entry.manifest.retries)
        case _CommitOutline() | Abort() | Pin() | Remove():
            ids = (entry.snapshot,)
        case EpochStart():
            ids = (entry.restored,)
            if entry.view is not None:
                entry.view.check()
        case ViewChange():
            entry.view.check()
        case Release() | Term() | Fence():
            pass
    for printed in ids:
        if printed is not None:
            SnapshotId.parse(printed)
