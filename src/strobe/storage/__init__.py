"""The store: one documented, versioned format (docs/format.md), one log that decides everything."""

from strobe.storage.appending import append_when
from strobe.storage.collection import Collected, collect
from strobe.storage.integrity import Problem
from strobe.storage.log_state import Committed, LogState, Opened
from strobe.storage.steps import CommitStep, OnStep
from strobe.storage.store import Store

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
