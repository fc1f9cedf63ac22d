"""The checksum of a trace segment: in its metadata, over every byte of the file (docs/trace.md).

A Parquet file ends with its metadata, so nothing can be appended. The checksum is the BLAKE3 of the file with zeros in
the place of its own digits, as for the sealed documents of a store. It is checked before anything else is read: how a
Parquet reader handles damaged bytes is undefined.
"""

import os
from pathlib import Path

from blake3 import blake3

from strobe.errors import TraceDamaged
from strobe.private_files import open_file

KEY = "seal"
_MARK = b"strobe-trace-blake3:"
_DIGITS = 64
_END = b"PAR1"
UNSEALED = _MARK + b"0" * _DIGITS
"""The value of `KEY` in the metadata before the file is sealed."""
SEGMENT_BYTES_MAX = 1 << 30


def seal(raw: bytes) -> bytes:
    """Return a file that contains `UNSEALED` with its checksum filled in."""
    start = raw.rindex(UNSEALED) + len(_MARK)
    return raw[:start] + _checksum(raw, start) + raw[start + _DIGITS :]


def read_sealed(path: Path) -> bytes:
    """Return the bytes of a segment; TraceDamaged if they do not match its checksum, or if it is not a regular file."""
    try:
        raw = _read(path)
    except OSError as error:
        raise unreadable(path, error.strerror or str(error)) from error
    if not raw.endswith(_END):
        raise unreadable(path, "its end is missing: it was cut short, or overwritten")
    start = raw.rfind(_MARK) + len(_MARK)
    if start < len(_MARK) or len(raw) < start + _DIGITS:
        raise TraceDamaged(
            f"{path} is not a segment of a trace: it has no checksum; remove it, or give a directory epoch-NNNNNN"
        )
    if raw[start : start + _DIGITS] != _checksum(raw, start):
        raise unreadable(path, "its bytes do not match its checksum")
    return raw


def unreadable(path: Path, problem: str) -> TraceDamaged:
    lines = problem.splitlines() or ["no reason was given"]
    return TraceDamaged(f"{path} cannot be read: {lines[0]}; it is damaged: remove it and those after it")


def _checksum(raw: bytes, start: int) -> bytes:
    view = memoryview(raw)
    digest = blake3(view[:start]).update(b"0" * _DIGITS).update(view[start + _DIGITS :])
    return digest.hexdigest().encode()


def _read(path: Path) -> bytes:
    with open_file(path) as file:
        size = os.fstat(file.fileno()).st_size
        if size > SEGMENT_BYTES_MAX:
            raise OSError(None, f"it has {size:,} bytes, and a segment at most {SEGMENT_BYTES_MAX:,}")
        raw: bytes = file.read()
        return raw
