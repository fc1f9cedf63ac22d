"""Consistent global snapshots of distributed systems that never stop: every process, and every message in flight."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from strobe.errors import StrobeError

if TYPE_CHECKING:
    from strobe.declarations import Declares, Waits
    from strobe.invariants import GlobalState
    from strobe.keyed_state import KeyedState
    from strobe.process import Channel, Context, Process, System
    from strobe.request_reply import Reply, Request, Requests, reply
    from strobe.runtime.node.own_loop import Node

__all__ = [
    "Channel",
    "Context",
    "Declares",
    "GlobalState",
    "KeyedState",
    "Node",
    "Process",
    "Reply",
    "Request",
    "Requests",
    "StrobeError",
    "System",
    "Waits",
    "__version__",
    "reply",
]

_ELSEWHERE = {
    "Declares": "strobe.declarations",
    "GlobalState": "strobe.invariants",
    "KeyedState": "strobe.keyed_state",
    "Node": "strobe.runtime.node.own_loop",
    "Reply": "strobe.request_reply",
    "Request": "strobe.request_reply",
    "Requests": "strobe.request_reply",
    "Waits": "strobe.declarations",
    "reply": "strobe.request_reply",
}

__version__ = "0.1.0"


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


def __getattr__(name: str) -> Any:
    # Imported on first use, so that `strobe --help` starts fast.
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_ELSEWHERE.get(name, "strobe.process")), name)
