"""The bytes of one log entry: a checksum covers every bit, and an entry that cannot be read back is not written."""

import math

import pytest
from tests.storage.samples import sample_id

from strobe.errors import StoreCorrupt, StoreError, StoreFormatError, UsageError
from strobe.protocol.values.log_entries import Abort, Begin
from strobe.storage.entries.log_file import decode_entry, encode_entry, entry_name, entry_position
from strobe.storage.files.checksummed_json import seal

PREVIOUS = "ab" * 32
ENTRY = Abort(str(sample_id(1)), "process b crashed: naïve «reason»", 7)


def test_an_entry_is_read_back_unchanged() -> None:
    raw, checksum = encode_entry(ENTRY, 5, PREVIOUS)
    assert decode_entry(raw, "store", 5, PREVIOUS) == (ENTRY, checksum, 0)


def test_the_term_of_an_entry_is_read_back() -> None:
    raw, checksum = encode_entry(ENTRY, 5, PREVIOUS, term=3)
    assert decode_entry(raw, "store", 5, PREVIOUS) == (ENTRY, checksum, 3)


def test_every_flipped_bit_is_found() -> None:
    raw, _ = encode_entry(ENTRY, 5, PREVIOUS)
    for bit in range(8 * len(raw)):
        changed = bytearray(raw)
        changed[bit // 8] ^= 1 << (bit % 8)
        with pytest.raises(StoreCorrupt, match=r"log/00000000000000000005\.json"):
            decode_entry(bytes(changed), "store", 5, PREVIOUS)


@pytest.mark.parametrize("garbage", [b"", b"\0" * 4096, b"{}", b'{"blake3":"', b"\xff\xfe" * 99, b"null\n"])
def test_garbage_is_named(garbage: bytes) -> None:
    with pytest.raises(StoreCorrupt, match=r"log/00000000000000000005\.json"):
        decode_entry(garbage, "store", 5, PREVIOUS)


def test_an_entry_in_the_place_of_another_or_after_another_is_found() -> None:
    raw, _ = encode_entry(ENTRY, 5, PREVIOUS)
    with pytest.raises(StoreCorrupt, match="holds entry 5"):
        decode_entry(raw, "store", 6, PREVIOUS)
    with pytest.raises(StoreCorrupt, match=r"does not follow log/00000000000000000004\.json"):
        decode_entry(raw, "store", 5, "cd" * 32)
    first, _ = encode_entry(ENTRY, 0, PREVIOUS)
    with pytest.raises(StoreCorrupt, match=r"does not follow the header strobe\.json"):
        decode_entry(first, "store", 0, "cd" * 32)


def test_an_entry_of_an_unknown_type_is_a_format_error_not_damage() -> None:
    raw, _ = encode_entry(ENTRY, 5, PREVIOUS)
    digits = raw[11:75]
    newer, _ = seal(raw.replace(digits, b"0" * 64).replace(b'"type":"abort"', b'"type":"fresh"'))
    with pytest.raises(StoreFormatError, match="newer Strobe"):
        decode_entry(newer, "store", 5, PREVIOUS)


def test_members_that_a_later_strobe_adds_are_ignored() -> None:
    raw, _ = encode_entry(ENTRY, 5, PREVIOUS)
    extended, checksum = seal(raw.replace(raw[11:75], b"0" * 64).replace(b'"at_us":7', b'"at_us":7,"colour":"red"'))
    assert decode_entry(extended, "store", 5, PREVIOUS) == (ENTRY, checksum, 0)


@pytest.mark.parametrize(
    "entry",
    [
        Abort("not-an-id", "reason", 0),
        Abort(str(sample_id(1)), "\ud800", 0),
        Abort(str(sample_id(1)), "reason", math.inf),  # type: ignore[arg-type]
        Begin(str(sample_id(1)), 1, "x", [1, 2], 0),  # type: ignore[arg-type]
    ],
)
def test_an_entry_that_could_not_be_read_back_is_refused(entry: Abort) -> None:
    with pytest.raises(UsageError):
        encode_entry(entry, 0, PREVIOUS)


def test_names_of_entries_sort_like_their_positions() -> None:
    names = [entry_name(position) for position in (0, 9, 10, 10**19)]
    assert names == sorted(names)
    assert [entry_position(name.removeprefix("log/")) for name in names] == [0, 9, 10, 10**19]
    assert entry_position("0.json") is None
    assert entry_position("00000000000000000000.json#1") is None


def test_errors_of_the_store_have_the_exit_codes_of_the_command_line() -> None:
    assert (StoreCorrupt("s", "p", "x").exit_code, StoreFormatError("s", "x").exit_code) == (1, 2)
    assert StoreError("s", "x").exit_code == 3
