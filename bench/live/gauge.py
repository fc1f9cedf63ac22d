"""The interface between a measured process and the measurement: a gate that lets it run, and a gauge that it updates.

Both are memory-mapped files. So checking the gate costs almost nothing, and the measurement sends no messages between
the measured ones. A process reads its own clocks: count, time and CPU time of a reading are from the same moment.
"""

import mmap
import os
import struct
import time
from pathlib import Path
from typing import NamedTuple

VARIABLE = "STROBE_BENCH"
"""The environment variable with the folder of gate and gauges, for the measured processes."""

_FORMAT = struct.Struct("<qqdddq")
_GATE = "gate"


class Reading(NamedTuple):
    """The messages that a process has handled, the time, and its CPU time; `value` is its own measurement."""

    messages: int
    at_s: float
    cpu_s: float
    value: float


class Gauge:
    """Readings of one process. The writer numbers a reading at both ends, so that a reader never sees a partial one."""

    def __init__(self, name: str, folder: Path | None = None) -> None:
        self._memory = _map((folder or given_folder()) / f"{name}.gauge", _FORMAT.size)
        self._number = 0
        self._begun = False

    def write(self, messages: int, value: float = 0.0) -> None:
        """Write a reading. Reading the CPU time is a system call: do not write for every frame."""
        self._number += 1
        number = self._number
        _FORMAT.pack_into(self._memory, 0, number, messages, time.monotonic(), time.process_time(), value, number)

    def read(self) -> Reading | None:
        """Return the last reading, if there has been one."""
        while True:
            before, messages, at_s, cpu_s, value, after = _FORMAT.unpack_from(self._memory)
            # A reading is cleared before it is written: after the first one, zeros mean a write in progress.
            if before == after and (after or not self._begun):
                self._begun = after > 0
                return Reading(messages, at_s, cpu_s, value) if after else None


class Gate:
    """Whether the processes may run. Each opening has a new number; shut, the number is 0."""

    def __init__(self, folder: Path | None = None) -> None:
        self._memory = _map((folder or given_folder()) / _GATE, 1)
        self._opened = 0

    @property
    def number(self) -> int:
        return self._memory[0]

    def open(self) -> None:
        self._opened = self._opened % 255 + 1
        self._memory[0] = self._opened

    def shut(self) -> None:
        self._memory[0] = 0


def given_folder() -> Path:
    return Path(os.environ[VARIABLE])


def _map(path: Path, size: int) -> mmap.mmap:
    with os.fdopen(os.open(path, os.O_RDWR | os.O_CREAT, 0o600), "r+b") as file:
        if os.fstat(file.fileno()).st_size < size:
            file.truncate(size)
        return mmap.mmap(file.fileno(), size)
