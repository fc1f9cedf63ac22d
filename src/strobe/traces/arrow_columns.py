"""Converts numpy arrays and bytes to Arrow columns and back, buffer by buffer.

`pyarrow.array` and the like would work, but import pandas if that is installed. That takes a second: too long for a
live process or a command.
"""

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

Integers = npt.NDArray[np.int64]
Valid = npt.NDArray[np.bool_]


def number_column(values: npt.NDArray[np.int64] | npt.NDArray[np.float64], valid: Valid | None = None) -> pa.Array:
    """Return 64-bit integers or floats; null if not `valid`."""
    kind = pa.float64() if values.dtype == np.float64 else pa.int64()
    buffers = [_bits(valid), pa.py_buffer(np.ascontiguousarray(values))]
    return pa.Array.from_buffers(kind, len(values), buffers)


def name_column(codes: Integers, names: Sequence[str], valid: Valid | None = None) -> pa.DictionaryArray:
    """Return names by their index in `names`; null if not `valid`."""
    indices = pa.Array.from_buffers(pa.int32(), len(codes), [_bits(valid), pa.py_buffer(codes.astype(np.int32))])
    values = bytes_column([name.encode() for name in names], pa.string())
    return pa.DictionaryArray.from_arrays(indices, values)


def bytes_column(values: Sequence[bytes | None], kind: pa.DataType) -> pa.Array:
    """Return binary values or strings, depending on `kind`; null for None."""
    lengths = np.fromiter((0 if value is None else len(value) for value in values), np.int64, len(values))
    offsets = np.zeros(len(values) + 1, np.int32)
    np.cumsum(lengths, out=offsets[1:])
    valid = np.fromiter((value is not None for value in values), np.bool_, len(values))
    data = b"".join(value for value in values if value is not None)
    return pa.Array.from_buffers(kind, len(values), [_bits(valid), pa.py_buffer(offsets), pa.py_buffer(data)])


def integers(values: Iterable[int]) -> Integers:
    return np.fromiter(values, np.int64)


def _bits(valid: Valid | None) -> pa.Buffer | None:
    return None if valid is None else pa.py_buffer(np.packbits(valid, bitorder="little"))


def numbers_in(column: pa.ChunkedArray, absent: int = 0) -> Integers:
    """Return the integers of a column, with `absent` for null."""
    parts = [_present(chunk, np.int32 if chunk.type == pa.int32() else np.int64) for chunk in column.chunks]
    filled = [np.where(valid, values, absent).astype(np.int64) for values, valid in parts]
    return np.concatenate(filled) if filled else np.zeros(0, np.int64)


def times_in(column: pa.ChunkedArray) -> npt.NDArray[np.float64]:
    """Return the floats of a column, with NaN for null."""
    filled = [np.where(valid, values, np.nan) for values, valid in (_present(part, float) for part in column.chunks)]
    return np.concatenate(filled) if filled else np.zeros(0)


def _present(chunk: pa.Array, kind: type) -> tuple[npt.NDArray[Any], Valid]:
    """Return the numbers of a chunk, and which of them are not null."""
    bits, data = chunk.buffers()
    begin, end = chunk.offset, chunk.offset + len(chunk)
    if bits is None:
        valid = np.ones(len(chunk), np.bool_)
    else:
        valid = np.unpackbits(np.frombuffer(bits, np.uint8), bitorder="little")[begin:end].astype(np.bool_)
    if data is None:
        return np.zeros(len(chunk)), valid
    return np.frombuffer(data, kind)[begin:end], valid
