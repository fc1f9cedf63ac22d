"""What a measured process shares with who measures it: a gate that lets it run, and a gauge that it keeps up to date.

Both are files mapped into memory, so that looking at the gate costs a process nothing to speak of, and no message of
the measurement travels between the messages that are measured. A process reads its own clocks: count, time and
processor time in a reading are of the same moment.
"""

import mmap
import os
import struct
import time
from pathlib import Path
from typing import NamedTuple

VARIABLE = "STROBE_BENCH"
"""Names the folder of gate and gauges to the processes that are measured."""

_FORMAT = struct.Struct("<qqdddq")
_GATE = "gate"


class Reading(NamedTuple):
    """How many messages a process has handled by when, with how much CPU; `value` is whatever it measures itself."""

    messages: int
    at_s: float
    cpu_s: float
    value: float


class Gauge:
    """Readings of one process. Who writes numbers them at both ends, so that who reads never sees half of one."""

    def __init__(self, name: str, folder: Path | None = None) -> None:
        self._memory = _map((folder or given_folder()) / f"{name}.gauge", _FORMAT.size)
        self._number = 0
        self._begun = False

    def write(self, messages: int, value: float = 0.0) -> None:
        """Write a reading. Asking for the processor time is a call of the system: not to be done for every frame."""
        self._number += 1
        number = self._number
        _FORMAT.pack_into(self._memory, 0, number, messages, time.monotonic(), time.process_time(), value, number)

    def read(self) -> Reading | None:
        """Return the last reading, if there has been one."""
        while True:
            before, messages, at_s, cpu_s, value, after = _FORMAT.unpack_from(self._memory)
            # A reading is cleared before it is written: nothing but zeros is none, once there has been one.
            if before == after and (after or not self._begun):
                self._begun = after > 0
                return Reading(messages, at_s, cpu_s, value) if after else None


class Gate:
    """Says whether the processes are to run. Each time it opens it has another number; shut, it has 0."""

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
