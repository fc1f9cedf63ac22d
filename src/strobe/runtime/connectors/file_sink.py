"""A file of JSON lines as a two-phase sink (R2): staged with a snapshot, released after its commit.

A position is the number of bytes of output since the beginning; in released output it is also the file offset.
"""

import threading
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec

from strobe.encodable import UNENCODABLE, refusal
from strobe.errors import StrobeError, UsageError
from strobe.outside import Sink
from strobe.runtime.connectors.sink_staging import OnStep, Staging, released_in

_encode = msgspec.json.Encoder().encode


class FileSink(Sink):
    """JSON lines, released into `path`; after a fork in epoch N, into `path.epoch-N`.

    Emitted output stays in memory until `prepare`. The durable part need not end at the cut of a snapshot: the part
    that a snapshot covers is released, and the rest is discarded on a restore.
    """

    def __init__(self, path: str | Path, process: str, on_step: OnStep | None = None) -> None:
        self.path = Path(path)
        self.process = process
        self._on_step = on_step
        self._staging: Staging | None = None
        self._disk = threading.Lock()
        self._lines: deque[tuple[int, bytes]] = deque()  # (end position, line)
        self._position = 0
        self._prepared = 0

    def emit(self, record: Any) -> None:
        try:
            line = _encode(record) + b"\n"
        except UNENCODABLE as error:
            raise refusal(f"the record that process {self.process} emits", record, error) from error
        self._position += len(line)
        self._lines.append((self._position, line))

    @property
    def position(self) -> int:
        return self._position

    @property
    def buffered_bytes(self) -> int:
        """The number of bytes in memory."""
        return self._position - self._prepared

    @property
    def released(self) -> int | None:
        try:
            return released_in(self.path)
        except (OSError, StrobeError):
            return None

    def restore(self, position: int, *, epoch: int, origin: int = 0, fork: bool = False) -> None:
        self.close()
        with self._faults():
            staging = Staging(self.path, self._on_step)
            try:
                self._go_to(staging, position, epoch, origin, fork)
            except BaseException:
                staging.close()
                raise
            self._staging = staging
            self._position = self._prepared = position

    def resume(self, position: int, *, epoch: int) -> None:
        self.close()
        with self._faults():
            staging = Staging(self.path, self._on_step)
            try:
                staging.begin(epoch)
                self._require_staged(staging, position)
            except BaseException:
                staging.close()
                raise
            self._staging = staging
            self._position = self._prepared = position

    def prepare(self, position: int) -> None:
        with self._faults():
            taken: list[tuple[int, bytes]] = []
            while self._lines and self._lines[0][0] <= position:
                taken.append(self._lines.popleft())
            if not taken:
                return
            try:
                self._open().stage(self._prepared, (line for _, line in taken))
            except BaseException:
                self._lines.extendleft(reversed(taken))
                raise
            self._prepared = taken[-1][0]

    def release(self, position: int) -> None:
        with self._faults():
            staging = self._open()
            if staging.released >= position:
                return
            missing = staging.missing(position)
            assert missing is None, f"released before it was prepared: {missing}"
            staging.release(position)

    def close(self) -> None:
        with self._disk:
            if self._staging is not None:
                self._staging.close()
                self._staging = None
            self._lines.clear()

    def _open(self) -> Staging:
        assert self._staging is not None, "a sink is restored before it is used"
        return self._staging

    def _go_to(self, staging: Staging, position: int, epoch: int, origin: int, fork: bool) -> None:
        """Release what was staged before `position` and discard the rest, or begin a new file there."""
        staging.begin(epoch)
        released, current = staging.released, staging.current
        if released > position:
            problem = f"{staging.output} has released {released:,} bytes, and the snapshot covers {position:,} of them"
        elif position > current.base and origin < current.epoch:
            problem = f"{staging.output} has the output of a fork, and the snapshot is of epoch {origin}, before it"
        else:
            self._require_staged(staging, position)
            staging.release(position)
            staging.discard()
            return
        if not fork:
            raise UsageError(f"sink {problem}; restore a newer snapshot, or fork: output then continues in a new file")
        staging.fork(position, epoch)
        staging.discard()

    def _require_staged(self, staging: Staging, position: int) -> None:
        missing = staging.missing(position)
        if missing is not None:
            raise UsageError(
                f"sink {self.path}: output from byte {missing:,} to {position:,} is neither released nor staged; "
                f"put back {staging.output.name} and {staging.directory.name} as they were"
            )

    @contextmanager
    def _faults(self) -> Iterator[None]:
        """Serialize disk work, and turn OSError into StrobeError."""
        with self._disk:
            try:
                yield
            except OSError as error:
                raise StrobeError(f"sink {self.path}: {error}; output is held back until that is repaired") from error
