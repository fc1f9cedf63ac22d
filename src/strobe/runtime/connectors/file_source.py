"""A file of JSON lines as a rewindable source (R2): read from any position, followed as it grows.

The lowest 40 bits of a position are the byte offset after the last line read; the bits above are a hash of the bytes
before it. So a position can be checked against the file: a shortened or replaced file is refused.
"""

import os
from collections import deque
from pathlib import Path
from typing import Any

import msgspec
import xxhash

from strobe.errors import StrobeError, UsageError
from strobe.outside import REACH_BITS, Source, shown_position

CHUNK_BYTES = 256 << 10
LINE_BYTES_MAX = 16 << 20
LINES_MAX = 4096
"""Maximum number of lines read in one poll, whether or not they contain a record: the process has other work."""
SAMPLE_BYTES = 4096
"""This much of the beginning, and of the bytes right before a position, goes into its hash."""

MALFORMED = ("stop", "skip")

_HASH_BITS = 53 - REACH_BITS  # together 53 bits, which every JSON reader can hold exactly
_OFFSET_MAX = (1 << REACH_BITS) - 1


class FileSource(Source):
    """The lines of `path`, each a JSON value, decoded as `type`. An incomplete last line waits for its end.

    `malformed` decides about a line that cannot be decoded: `stop` raises UsageError, `skip` counts it in `skipped` and
    continues. If the file does not exist yet, the source waits for it.
    """

    def __init__(self, path: str | Path, process: str, type: Any = Any, malformed: str = "stop") -> None:  # noqa: A002
        if malformed not in MALFORMED:
            raise UsageError(f"malformed = {malformed!r} is not known; choose one of: {', '.join(MALFORMED)}")
        self.path = Path(path)
        self.process = process
        self.type = type
        self.malformed = malformed
        self.skipped = 0
        self._decode = msgspec.json.Decoder(type).decode
        self._file: int | None = None
        self._go_to(0)

    def open(self, position: int) -> None:
        self.close()
        self._go_to(shown_position(position))
        if position == 0:
            return
        if not self._find():
            raise UsageError(f"{self.path} does not exist, but {self._offset:,} bytes of it were read; put it back")
        self._refuse_shortened()
        if self._mark(self._offset) != position:
            raise UsageError(
                f"{self.path} is not the file that was read up to byte {self._offset:,}: what lies before has changed; "
                "put back the one that was read"
            )

    def poll(self, records_max: int) -> list[Any]:
        records: list[Any] = []
        self._ends = [self._offset]
        for _ in range(LINES_MAX):
            if len(records) == records_max or not (self._lines or self._read()):
                break
            line = self._lines[0]
            try:
                records.append(self._decode(line))
            except (ValueError, RecursionError) as error:  # msgspec's errors are ValueErrors
                if self.malformed == "stop":
                    if records:
                        break  # return these first; the next poll begins with the bad line
                    raise self._malformed_line(error) from None
                self.skipped += 1
            else:
                self._ends.append(self._offset + len(line))
            self._offset += len(self._lines.popleft())
        return records

    @property
    def position(self) -> int:
        return self._mark(self._offset)

    def position_after(self, count: int) -> int:
        # Skipped lines after the last record belong to it.
        return self.position if count == len(self._ends) - 1 else self._mark(self._ends[count])

    def close(self) -> None:
        if self._file is not None:
            os.close(self._file)
            self._file = None

    def _go_to(self, offset: int) -> None:
        self._offset = offset
        self._ends = [offset]
        self._lines: deque[bytes] = deque()
        self._tail = b""  # the beginning of an incomplete line

    def _find(self) -> bool:
        """Open the file, if it exists."""
        if self._file is None:
            try:
                self._file = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC)
            except FileNotFoundError:
                return False
            except OSError as error:
                raise StrobeError(f"source {self.path} cannot be read: {error.strerror}") from error
        return True

    def _read(self) -> bool:
        """Read more; return whether there is a whole line now. Only called when no line is left."""
        if not self._find():
            return False
        assert self._file is not None
        while b"\n" not in self._tail:
            chunk = os.pread(self._file, CHUNK_BYTES, self._offset + len(self._tail))
            if not chunk:
                self._refuse_shortened()
                self._refuse_replaced()
                return False
            self._tail += chunk
            if len(self._tail) > LINE_BYTES_MAX and b"\n" not in self._tail:
                raise UsageError(
                    f"{self._place()} is longer than {LINE_BYTES_MAX:,} bytes; is this a file of JSON lines?"
                )
        whole, newline, self._tail = self._tail.rpartition(b"\n")
        # Not splitlines, which also splits at carriage returns.
        self._lines.extend(line + newline for line in whole.split(newline))
        return True

    def _mark(self, offset: int) -> int:
        """Return the position for `offset`, with a hash of the bytes before it."""
        if offset == 0:
            return 0
        if offset > _OFFSET_MAX:
            raise UsageError(f"{self.path} is longer than {_OFFSET_MAX:,} bytes; continue in another file")
        assert self._file is not None, "what was read is open"
        sample = min(offset, SAMPLE_BYTES)
        known = os.pread(self._file, sample, 0) + os.pread(self._file, sample, offset - sample)
        digest = xxhash.xxh3_64_intdigest(known) >> (64 - _HASH_BITS)
        return digest << REACH_BITS | offset

    def _refuse_shortened(self) -> None:
        assert self._file is not None
        size = os.fstat(self._file).st_size
        if size < self._offset:
            raise UsageError(
                f"{self.path} has {size:,} bytes, but {self._offset:,} were read: it was shortened or replaced; "
                "put back the one that was read"
            )

    def _refuse_replaced(self) -> None:
        """Once the open file has been read to its end, refuse another file under the same name."""
        assert self._file is not None
        try:
            named = self.path.stat()
        except FileNotFoundError:
            return  # it was moved, and may still grow
        if not os.path.samestat(named, os.fstat(self._file)):
            raise UsageError(
                f"{self.path} was replaced by another file after {self._offset:,} bytes of it were read; "
                "append to the file instead, or give the new one a source of its own"
            )

    def _malformed_line(self, error: Exception) -> UsageError:
        return UsageError(f"{self._place()}: {error}; correct the line, or let the source skip such lines")

    def _place(self) -> str:
        """Name the current line for an error. Lines are counted only here."""
        number, offset = 1, 0
        assert self._file is not None
        while offset < self._offset:
            chunk = os.pread(self._file, min(CHUNK_BYTES, self._offset - offset), offset)
            number += chunk.count(b"\n")
            offset += len(chunk) or self._offset
        return f"{self.path}, line {number:,} (byte {self._offset:,})"
