"""Derives the first view from the system that the user describes."""

from strobe.process import System
from strobe.protocol.process.registry import check_channels
from strobe.protocol.values.view import ChannelSpec, View, check_hash


def who_must_stay(system: System) -> dict[str, str]:
    """Return the processes of `system` that may not leave it, each with the reason."""
    return {name: process.must_stay for name, process in system.processes.items() if process.must_stay}


def first_view(system: System) -> View:
    """Return view 1 of `system`; raise UsageError if its topology is wrong."""
    check_hash("the system", system.hash)
    channels = tuple(
        ChannelSpec(channel.id, channel.source, channel.target, channel.kind, hash=channel.hash or system.hash)
        for channel in system.channels
    )
    view = View(1, tuple(system.processes), channels)
    view.check()
    check_channels(system.protocol, view)
    return view
