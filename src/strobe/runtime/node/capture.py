"""One snapshot at one process, from its cut to its outcome; and the base for later deltas."""

import asyncio
from typing import Any

import msgspec

from strobe.keyed_state import Frozen, KeyedState
from strobe.protocol import Fragment, InFlight, SnapshotId
from strobe.protocol.coordinator.messages import RecordingFailed, SnapshotStarted
from strobe.protocol.values.fragment import KEYED
from strobe.protocol.values.log_entries import ProcessRecord
from strobe.runtime.messages.control import FragmentStored, SnapshotBegun
from strobe.runtime.node.application import Captured


class Base(msgspec.Struct):
    """A committed part, as a base for later ones: its record, and the number of its frozen state."""

    record: ProcessRecord
    frozen_number: int | None


class Capture:
    """One snapshot at this process."""

    def __init__(self, snapshot: SnapshotId, captured: Captured, recorded_us: int) -> None:
        self.snapshot = snapshot
        self.captured = captured
        self.recorded_us = recorded_us
        self.pause_us = 0
        self.sinks: dict[str, int] = {}
        self.sources: dict[str, int] = {}
        self.keyed: KeyedState[Any] | None = None
        self.frozen: Frozen | None = None
        self.encoding = KEYED
        self.data = b""
        # The message sent to the coordinator, if this process has initiated the snapshot.
        self.started: SnapshotStarted | None = None
        self.begun: asyncio.Future[SnapshotBegun] = asyncio.get_running_loop().create_future()
        self.fragment: asyncio.Future[Fragment] = asyncio.get_running_loop().create_future()
        # The recorded channel state, from the end of the recording until it is stored.
        self.in_flight: dict[str, list[InFlight]] = {}
        self.writes_frames = False
        self.answer: FragmentStored | RecordingFailed | None = None
        self.task: asyncio.Task[None] | None = None
        self.retry: asyncio.TimerHandle | None = None

    @property
    def frozen_number(self) -> int | None:
        return self.frozen.number if self.frozen is not None else None
