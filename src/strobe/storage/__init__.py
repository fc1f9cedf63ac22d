"""The store: one documented, versioned format (docs/format.md) and one log that orders everything.

In: snapshots and entries, from coordinators. Out: the same, verified, for readers. It may be a directory or a
prefix of an object store.
"""

from strobe.storage.entries.log_state import Committed, LogState, Opened
from strobe.storage.files.commit_steps import CommitStep, OnStep
from strobe.storage.store.garbage_collection import Collected, collect
from strobe.storage.store.integrity import Problem
from strobe.storage.store.optimistic_append import append_when
from strobe.storage.store.store import Store

__all__ = [
    "Collected",
    "CommitStep",
    "Committed",
    "LogState",
    "OnStep",
    "Opened",
    "Problem",
    "Store",
    "append_when",
    "collect",
]
