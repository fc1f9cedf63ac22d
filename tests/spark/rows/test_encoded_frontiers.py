"""Frontiers parsed directly from bytes equal those of the JSON decoder, or the parser gives up, for any bytes."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from strobe.protocol.values.log_entries import FrontierRecord
from strobe.spark.rows.encoded_frontiers import Layout
from strobe.storage.entries.commit_decoder import EncodedEnds

Part = dict[str, FrontierRecord]

COUNTS = st.integers(0, 10**18 - 1)
HASHES = st.binary(min_size=16, max_size=16).map(bytes.hex)
NAMES = st.one_of(st.sampled_from(("a->b", "b->a", "b~>c", "process017->process003")), st.text(max_size=8))
PARTS = st.lists(st.dictionaries(NAMES, st.builds(FrontierRecord, COUNTS, HASHES), max_size=4), min_size=1, max_size=4)


def encoded(parts: list[Part]) -> list[bytes]:
    return [msgspec.json.encode(part) for part in parts]


def read(layout: Layout, raw: list[bytes]) -> list[tuple[int, str]] | None:
    found = layout.read(raw)
    if found is None:
        return None
    counts, hashes = found
    return list(zip(counts.tolist(), [row.tobytes().hex() for row in hashes], strict=True))


def decoded(raw: list[bytes]) -> list[tuple[int, str]]:
    return [(end.count, bytes.fromhex(end.hash).hex()) for part in raw for end in EncodedEnds(part).values()]


@given(PARTS, st.data())
def test_later_frontiers_of_the_same_names_are_read_as_decoded(parts: list[Part], data: st.DataObject) -> None:
    later = [{name: FrontierRecord(data.draw(COUNTS), data.draw(HASHES)) for name in part} for part in parts]
    found = read(Layout(parts), encoded(later))
    braces = any("}" in name for part in parts for name in part)
    if found is None:
        assert braces or not any(parts)
    else:
        assert found == decoded(encoded(later))


@given(PARTS, st.data())
def test_changed_bytes_give_what_a_decoder_finds_or_nothing(parts: list[Part], data: st.DataObject) -> None:
    raw = encoded(parts)
    part = data.draw(st.integers(0, len(raw) - 1))
    at = data.draw(st.integers(0, len(raw[part]) - 1))
    until = data.draw(st.integers(at, min(at + 3, len(raw[part]))))
    inserted = data.draw(st.one_of(st.binary(max_size=3), st.text('{}[]":, 0123456789abcdef\\-+.eE', max_size=3)))
    inserted = inserted.encode() if isinstance(inserted, str) else inserted
    raw[part] = raw[part][:at] + inserted + raw[part][until:]
    found = read(Layout(parts), raw)
    assert found is None or found == decoded(raw)


WRITTEN = b'{"a":{"count":12,"hash":"00ff"},"b":{"count":3,"hash":"1234"}}'


@pytest.mark.parametrize(
    "other",
    [
        b'{"b":{"count":12,"hash":"00ff"},"a":{"count":3,"hash":"1234"}}',
        b'{"a":{"hash":"00ff","count":12},"b":{"count":3,"hash":"1234"}}',
        b'{"a":{"count":12,"hash":"00ff"}}',
        b'{"a":{"count":12,"hash":"00ff"},"b":{"count":3,"hash":"123456"}}',
        b'{"a":{"count":-2,"hash":"00ff"},"b":{"count":3,"hash":"1234"}}',
        b'{"a":{"count":02,"hash":"00ff"},"b":{"count":3,"hash":"1234"}}',
        b'{"a":{"count":12,"hash":"00fx"},"b":{"count":3,"hash":"1234"}}',
        b'{"a":{"count":12,"hash":""},"b":{"count":3,"hash":""}}',
        b'{"a":{"count":9999999999999999999,"hash":"00ff"},"b":{"count":3,"hash":"1234"}}',
        b'{"a": {"count":12,"hash":"00ff"},"b":{"count":3,"hash":"1234"}}',
        b"}",
        b"{}",
        b"",
    ],
)
def test_any_other_encoding_is_left_to_the_decoder(other: bytes) -> None:
    layout = Layout([msgspec.json.decode(WRITTEN, type=Part)])
    assert read(layout, [WRITTEN]) == [(12, "00ff"), (3, "1234")]
    assert read(layout, [other]) is None
