"""Consistent global snapshots of distributed systems that never stop: every process, and every message in flight."""

from strobe.errors import StrobeError
from strobe.process import Channel, Context, Process, System, Waits

__all__ = ["Channel", "Context", "Process", "StrobeError", "System", "Waits", "__version__"]

__version__ = "0.1.0"
