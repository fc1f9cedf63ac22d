"""Consistent global snapshots of distributed systems that never stop: every process, and every message in flight."""

from typing import TYPE_CHECKING, Any

from strobe.errors import StrobeError

if TYPE_CHECKING:
    from strobe.keyed_state import KeyedState
    from strobe.process import Channel, Context, Process, System, Waits

__all__ = ["Channel", "Context", "KeyedState", "Process", "StrobeError", "System", "Waits", "__version__"]

__version__ = "0.1.0"


def __getattr__(name: str) -> Any:
    # Imported when first asked for: `strobe --help` needs none of it.
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from strobe import keyed_state, process

    return getattr(keyed_state if name == "KeyedState" else process, name)
