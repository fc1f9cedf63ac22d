"""The steps of a durable write, named so that tests and the simulator can crash between any two."""

import enum
from collections.abc import Callable
from typing import NamedTuple


class CommitStep(enum.IntEnum):
    """The step just completed, in the order of a commit: every blob, then their directory, then the entry (S1)."""

    BLOB_OPENED = enum.auto()
    """An empty file was created in tmp/."""
    BLOB_WRITTEN = enum.auto()
    """Its bytes were written to the operating system."""
    BLOB_SYNCED = enum.auto()
    """Its bytes are on disk."""
    BLOB_LINKED = enum.auto()
    """It has its name under blobs/."""
    BLOBS_DURABLE = enum.auto()
    """The directory of the snapshot's blobs is on disk."""
    ENTRY_OPENED = enum.auto()
    ENTRY_WRITTEN = enum.auto()
    ENTRY_SYNCED = enum.auto()
    ENTRY_LINKED = enum.auto()
    """The entry is in the log and takes effect."""
    ENTRY_DURABLE = enum.auto()
    """The directory of the log is on disk: the entry survives a power cut."""
    CHECKPOINT_OPENED = enum.auto()
    CHECKPOINT_WRITTEN = enum.auto()
    CHECKPOINT_SYNCED = enum.auto()
    CHECKPOINT_LINKED = enum.auto()
    """A file of a checkpoint has its name: a segment, or the checkpoint itself after all its segments."""
    CHECKPOINT_DURABLE = enum.auto()


OnStep = Callable[[CommitStep, str], None]
"""Called after each step with the name of the file within the store. If it raises, the operation ends there."""


class FileSteps(NamedTuple):
    """The steps of writing one file."""

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
