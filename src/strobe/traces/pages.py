"""Limits how much the pages of a Parquet file expand to, from their headers, before any page is decoded (E14).

A Parquet reader allocates what the header of each page declares, and a page of zeros compresses to almost nothing. The
footer declares sizes too, but no reader compares them with the pages. A dictionary, and values that share a prefix with
the one before (DELTA_BYTE_ARRAY), expand even further: a few bits can stand for a long value, row after row. So byte
columns of segments use neither, and readers refuse them.

Page headers are structs in Thrift's compact protocol. Only their integers are needed, two levels deep.
"""

from typing import NamedTuple

import pyarrow.parquet as pq

EXPANDED_BYTES_MAX = 1 << 30
"""The same limit as for the file."""

_UNCOMPRESSED, _COMPRESSED = 2, 3  # fields of a page header
_DATA, _DICTIONARY, _DATA_V2 = 5, 7, 8
_ENCODING = {_DATA: 2, _DICTIONARY: 2, _DATA_V2: 4}
_DICTIONARY_ENCODINGS = (2, 8)
_DELTA_BYTE_ARRAY = 7
_BYTES = ("BYTE_ARRAY", "FIXED_LEN_BYTE_ARRAY")

_TRUE, _FALSE, _BYTE, _DOUBLE, _BINARY, _STRUCT = 1, 2, 3, 7, 8, 12  # kinds of fields
_INTEGERS = (4, 5, 6)
_DEPTH_MAX = 8


class _Fields(NamedTuple):
    """The integers and nested structs of a struct, by field number."""

    integers: dict[int, int]
    structs: dict[int, "_Fields"]


def check_pages(raw: bytes, metadata: pq.FileMetaData, dictionaries: list[str]) -> None:
    """Raise ValueError if the pages would expand beyond the limit, or a column not in `dictionaries` has one."""
    expanded_bytes = 0
    for group in range(metadata.num_row_groups):
        for number in range(metadata.num_columns):
            column = metadata.row_group(group).column(number)
            for page in _pages(raw, column):
                size = page.integers.get(_UNCOMPRESSED, 0)
                if size < 0:
                    raise ValueError(f"a page of column {column.path_in_schema} has a size below 0")
                _check_encoding(page, column, dictionaries)
                expanded_bytes += size
                if expanded_bytes > EXPANDED_BYTES_MAX:
                    raise ValueError(f"its pages expand to more than {EXPANDED_BYTES_MAX:,} bytes")


def _pages(raw: bytes, column: pq.ColumnChunkMetaData) -> list[_Fields]:
    """Return the headers of all pages of a column. A reader reads no pages of a column without values."""
    if column.num_values <= 0:
        return []
    start = column.data_page_offset
    if column.has_dictionary_page and 0 < column.dictionary_page_offset < start:
        start = column.dictionary_page_offset
    end = start + column.total_compressed_size
    if not 0 <= start <= end <= len(raw):
        raise ValueError(f"column {column.path_in_schema} lies outside the file")
    found = []
    while start < end:
        reader = _Reader(raw, start, end)
        header = reader.struct()
        found.append(header)
        size = header.integers.get(_COMPRESSED, 0)
        if size < 0:
            raise ValueError(f"a page of column {column.path_in_schema} has a size below 0")
        start = reader.place + size
    return found


def _check_encoding(page: _Fields, column: pq.ColumnChunkMetaData, dictionaries: list[str]) -> None:
    if column.physical_type not in _BYTES:
        return
    for kind, field in _ENCODING.items():
        if kind not in page.structs:
            continue
        encoding = page.structs[kind].integers.get(field)
        has_dictionary = kind == _DICTIONARY or encoding in _DICTIONARY_ENCODINGS
        if encoding == _DELTA_BYTE_ARRAY or (has_dictionary and column.path_in_schema not in dictionaries):
            raise ValueError(f"column {column.path_in_schema} has an encoding that can expand without a bound")


class _Reader:
    """Reads one struct; ValueError if it is malformed or does not end before `end`."""

    def __init__(self, raw: bytes, place: int, end: int) -> None:
        self._raw = raw
        self._end = end
        self.place = place

    def struct(self, depth: int = 0) -> _Fields:
        if depth > _DEPTH_MAX:
            raise ValueError("the header of a page is nested too deep")
        fields = _Fields({}, {})
        number = 0
        while (head := self._byte()) != 0:
            kind, step = head & 15, head >> 4
            number = number + step if step else self._integer()
            if kind in _INTEGERS:
                fields.integers[number] = self._integer()
            elif kind == _STRUCT:
                fields.structs[number] = self.struct(depth + 1)
            else:
                self._skip(kind)
        return fields

    def _skip(self, kind: int) -> None:
        if kind == _BYTE:
            self._pass(1)
        elif kind == _DOUBLE:
            self._pass(8)
        elif kind == _BINARY:
            self._pass(self._varint())
        elif kind not in (_TRUE, _FALSE):  # page headers have no lists, sets or maps
            raise ValueError(f"the header of a page has a field of kind {kind}")

    def _pass(self, count: int) -> None:
        self.place += count
        if self.place > self._end:
            raise ValueError("the header of a page is cut short")

    def _byte(self) -> int:
        self._pass(1)
        return self._raw[self.place - 1]

    def _integer(self) -> int:
        """Return a signed integer, in zigzag encoding."""
        number = self._varint()
        return (number >> 1) ^ -(number & 1)

    def _varint(self) -> int:
        number = 0
        for shift in range(0, 70, 7):
            byte = self._byte()
            number |= (byte & 127) << shift
            if byte < 128:
                return number
        raise ValueError("the header of a page has a number of more than 64 bits")
