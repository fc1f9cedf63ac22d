"""The steps by which something becomes durable, named so that tests and the simulator can crash between any two."""

import enum
from collections.abc import Callable
from typing import NamedTuple


class CommitStep(enum.IntEnum):
    """What has just been done, in the order of a commit: every blob, their directories, then the entry (S1)."""

    BLOB_OPENED = enum.auto()
    """An empty file has been made in tmp/."""
    BLOB_WRITTEN = enum.auto()
    """Its bytes have been handed to the operating system."""
    BLOB_SYNCED = enum.auto()
    """Its bytes are on the disk."""
    BLOB_LINKED = enum.auto()
    """It has its name under blobs/."""
    BLOBS_DURABLE = enum.auto()
    """The directory with the names of the snapshot's blobs is on the disk."""
    ENTRY_OPENED = enum.auto()
    ENTRY_WRITTEN = enum.auto()
    ENTRY_SYNCED = enum.auto()
    ENTRY_LINKED = enum.auto()
    """The entry is in the log: from here on it counts."""
    ENTRY_DURABLE = enum.auto()
    """The directory of the log is on the disk: from here on it survives a power cut."""
    CHECKPOINT_OPENED = enum.auto()
    CHECKPOINT_WRITTEN = enum.auto()
    CHECKPOINT_SYNCED = enum.auto()
    CHECKPOINT_LINKED = enum.auto()
    """A file of a checkpoint has its name: a segment, or the checkpoint itself after all its segments."""
    CHECKPOINT_DURABLE = enum.auto()


OnStep = Callable[[CommitStep, str], None]
"""Called after each step, with the name of the file within the store; what it raises ends the operation there."""


class FileSteps(NamedTuple):
    """The steps in the making of one file."""

    opened: CommitStep
    written: CommitStep
    synced: CommitStep
    linked: CommitStep


BLOB_STEPS = FileSteps(CommitStep.BLOB_OPENED, CommitStep.BLOB_WRITTEN, CommitStep.BLOB_SYNCED, CommitStep.BLOB_LINKED)
ENTRY_STEPS = FileSteps(
    CommitStep.ENTRY_OPENED, CommitStep.ENTRY_WRITTEN, CommitStep.ENTRY_SYNCED, CommitStep.ENTRY_LINKED
)
CHECKPOINT_STEPS = FileSteps(
    CommitStep.CHECKPOINT_OPENED,
    CommitStep.CHECKPOINT_WRITTEN,
    CommitStep.CHECKPOINT_SYNCED,
    CommitStep.CHECKPOINT_LINKED,
)
