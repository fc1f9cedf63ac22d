"""One file of the log: an entry, its position, and the checksum of the entry before it (S1, S2).

Every file names its predecessor by checksum, so a missing, swapped or replaced entry is found by whoever reads past it.
Entry 0 names the header of the store: the entries of one store do not fit into another.
"""

import re

import msgspec

from strobe.errors import StoreCorrupt, StoreFormatError, UsageError
from strobe.protocol.ids import SnapshotId
from strobe.protocol.log import Abort, Begin, Commit, Entry, Pin, Remove
from strobe.storage.sealed import UNSEALED, check_seal, seal

LOG = "log"

_NAME = re.compile(r"(\d{20})\.json")


class _Document(msgspec.Struct, frozen=True):
    blake3: str
    position: int
    previous: str
    entry: Entry


_decoder = msgspec.json.Decoder(_Document)


def entry_name(position: int) -> str:
    """Return the name of entry `position` within the store."""
    return f"{LOG}/{position:020d}.json"


def entry_position(name: str) -> int | None:
    """Return the position of the entry in the file `name` of the log's directory, or None where it is no entry."""
    match = _NAME.fullmatch(name)
    return int(match[1]) if match else None


def encode_entry(entry: Entry, position: int, previous: str) -> tuple[bytes, str]:
    """Return the bytes of the file, and its checksum; raise UsageError where the entry could not be read back."""
    _check_id(entry)
    try:
        raw, checksum = seal(msgspec.json.encode(_Document(UNSEALED, position, previous, entry)) + b"\n")
        # One entry that nobody can read would make the whole log unreadable for good. JSON has no infinite number.
        if _decoder.decode(raw).entry == entry:
            return raw, checksum
    except (ValueError, TypeError) as error:
        raise UsageError(f"log entry {position} cannot be written as JSON: {error}") from error
    raise UsageError(f"log entry {position} cannot be written as JSON without changing it: {entry}")


def decode_entry(raw: bytes, url: str, position: int, previous: str | None) -> tuple[Entry, str]:
    """Return the entry and its checksum; `previous` None leaves the chain unchecked."""
    place = entry_name(position)
    checksum = check_seal(raw, url, place)
    try:
        document = _decoder.decode(raw)
        _check_id(document.entry)
    except (ValueError, UsageError) as error:
        raise StoreFormatError(
            url, f"{place}: its checksum holds, but it cannot be read ({error}); a newer Strobe may have written it"
        ) from error
    if document.position != position:
        raise StoreCorrupt(url, place, f"holds entry {document.position}: files of the log were renamed")
    if previous is not None and document.previous != previous:
        before = entry_name(position - 1) if position else "the header strobe.json"
        raise StoreCorrupt(url, place, f"does not follow {before}: one of the two was replaced")
    return document.entry, checksum


def _check_id(entry: Entry) -> None:
    if isinstance(entry, Begin | Commit | Abort | Pin | Remove):
        SnapshotId.parse(entry.snapshot)
