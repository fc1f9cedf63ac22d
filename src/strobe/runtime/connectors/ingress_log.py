"""The ingress log (R2): makes input that cannot be rewound durable, before a process reads it.

`append` returns when the record is on the disk; concurrent appends share one sync. Only then does the header advance,
and readers never read beyond it: a process never acts on input that a power cut could take back.
"""

import os
import threading
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec

from strobe.errors import UNREADABLE, StrobeError, UsageError
from strobe.outside import Source
from strobe.private_files import open_regular
from strobe.runtime.connectors.ingress_format import BEGIN, MAGIC, RECORD_BYTES_MAX, read_mark, records
from strobe.runtime.connectors.ingress_writer import Writer, WriterClosed

_encode = msgspec.msgpack.Encoder().encode


class IngressLog(Source):
    """The log at `path`: appended to by one operating-system process at a time, read by any.

    As a source it belongs to `process`, and yields records as `type`. A position is the offset after a record; `append`
    returns it. A record is delivered once the source's position has reached it.
    """

    def __init__(self, path: str | Path, process: str = "", type: Any = Any) -> None:  # noqa: A002
        self.path = Path(path)
        self.process = process
        self.type = type
        self._decode = msgspec.msgpack.Decoder(type).decode
        self._writer: Writer | None = None
        self._opening = threading.Lock()
        self._file: int | None = None
        self._offset = 0
        self._ends = [0]
        # Records up to here were durable when they were read, even if the header is behind that now.
        self._read_before = 0

    # Appending

    def append(self, record: Any) -> int:
        """Append `record`, and return its position once it is on the disk. Safe to call from many threads."""
        return self.append_all((record,))

    def append_all(self, records: Sequence[Any]) -> int:
        """Append several records with one sync; return the position of the last, or 0 if there is none."""
        payloads = [_encode(record) for record in records]
        if not payloads:
            return 0
        longest = max(map(len, payloads))
        if longest > RECORD_BYTES_MAX:
            raise UsageError(f"a record of {longest:,} bytes; an ingress log takes at most {RECORD_BYTES_MAX:,}")
        while True:
            with self._opening:
                if self._writer is None:
                    self._writer = Writer(self.path)
                writer = self._writer
            with suppress(WriterClosed):  # closed since by another thread: nothing was appended
                return writer.append(payloads)

    # Reading

    def open(self, position: int) -> None:
        self._close_reader()
        self._read_before = 0
        self._offset = position or BEGIN
        self._ends = [self._offset]
        if position == 0:
            return
        if not self._find():
            raise UsageError(
                f"ingress log {self.path} does not exist, but was read up to byte {position:,}; put it back"
            )
        durable = self._durable()
        if durable < position and not self._is_whole(durable, position):
            raise UsageError(
                f"ingress log {self.path} ends at byte {durable:,}, but was read up to {position:,}: "
                "it was replaced or damaged; put back the one that was read"
            )
        self._read_before = position

    def poll(self, records_max: int) -> list[Any]:
        self._ends = [self._offset]
        if not self._find():
            return []
        durable = self._durable()
        assert self._file is not None
        found: list[Any] = []
        for payload, end in records(self._file, self._offset, durable):
            found.append(self._decoded(payload))
            self._ends.append(end)
            if len(found) == records_max:
                break
        if not found and self._offset < durable:
            raise StrobeError(
                f"ingress log {self.path}: the record at byte {self._offset:,} is damaged, or no record begins there; "
                "put back the log that was read"
            )
        self._offset = self._ends[-1]
        return found

    @property
    def position(self) -> int:
        return self._offset if self._offset > BEGIN else 0

    def position_after(self, count: int) -> int:
        return self._ends[count] if self._ends[count] > BEGIN else 0

    def stop_reading(self) -> None:
        """Stop reading, but keep the writer open: a rollback does not affect appends."""
        self._close_reader()

    def close(self) -> None:
        """Stop reading, and let another process append."""
        self._close_reader()
        with self._opening:
            if self._writer is not None:
                self._writer.close()
                self._writer = None

    def _close_reader(self) -> None:
        if self._file is not None:
            os.close(self._file)
            self._file = None

    def _find(self) -> bool:
        if self._file is None:
            try:
                file = open_regular(self.path, follow=True)
            except FileNotFoundError:
                return False
            except OSError as error:
                raise self._unreadable(error) from error
            try:
                header = os.pread(file, BEGIN, 0)
            except OSError as error:  # for example, a directory can be opened but not read
                os.close(file)
                raise self._unreadable(error) from error
            if len(header) < BEGIN:
                os.close(file)
                return False  # its writer is just creating it
            self._file = file
            if not header.startswith(MAGIC):
                self._close_reader()
                raise UsageError(f"{self.path} is not an ingress log; give the path of one, or of a new file")
        return True

    def _unreadable(self, error: OSError) -> StrobeError:
        return StrobeError(
            f"ingress log {self.path} cannot be read: {error.strerror}; give the path of a file that this user may "
            "read, or of a new one"
        )

    def _is_whole(self, durable: int, position: int) -> bool:
        """Return whether whole records lead to `position`: a power cut may set the header back, but not the records."""
        assert self._file is not None
        return any(end == position for _, end in records(self._file, durable, os.fstat(self._file).st_size))

    def _durable(self) -> int:
        assert self._file is not None
        # Reads and writes of the mark are not synchronized: one of the next reads is whole.
        for _ in range(1000):
            durable = read_mark(self._file)
            if durable is not None:
                return max(durable, self._read_before)
        raise StrobeError(f"ingress log {self.path}: its header is damaged; open it for appending to repair it")

    def _decoded(self, payload: bytes) -> Any:
        try:
            return self._decode(payload)
        except UNREADABLE as error:
            raise UsageError(
                f"ingress log {self.path}, record at byte {self._ends[-1]:,}: {error}; "
                "give the source the type that was appended"
            ) from None
