"""Compares topologies: the processes and channels that a store or snapshot has with those of a system (E9)."""

from typing import NamedTuple

from strobe.errors import UsageError
from strobe.protocol import View
from strobe.protocol.values.view import ChannelSpec

_OTHER = "give another directory with --store"


class TopologyDifference(NamedTuple):
    """How a recorded view differs from a system."""

    missing_processes: list[str]
    """Recorded, and not in the system; likewise the channels."""
    missing_channels: list[ChannelSpec]
    changed_channels: list[tuple[ChannelSpec, ChannelSpec]]
    """Each as recorded, and as in the system."""
    added_channels: list[ChannelSpec]
    """In the system between recorded processes, and not recorded."""


def compare(recorded: View, *system: View) -> TopologyDifference:
    """Compare a recorded view with a system, which has the processes and channels of all the given views."""
    processes = {process for view in system for process in view.processes}
    channels = {channel.id: channel for view in system for channel in view.channels}
    described = {_description(channel) for view in system for channel in view.channels}
    before = {channel.id for channel in recorded.channels}
    other = [channel for channel in recorded.channels if _description(channel) not in described]
    return TopologyDifference(
        [process for process in recorded.processes if process not in processes],
        [channel for channel in other if channel.id not in channels],
        [(channel, channels[channel.id]) for channel in other if channel.id in channels],
        [one for one in channels.values() if one.id not in before and {one.source, one.target} <= recorded.members],
    )


def _description(channel: ChannelSpec) -> tuple[str, ...]:
    return (channel.id, channel.source, channel.target, channel.kind, channel.hash)


def check_store(url: str, epoch: int, view: View, first_view: View, logged_first: View) -> None:
    """Raise UsageError if the store at `url`, now in `view`, is not of the system that starts with `first_view`.

    `logged_first` is the view that the store's system started with.
    """
    if not epoch:
        raise UsageError(f"store {url} was not written by a live system; {_OTHER}")
    found = compare(view, first_view)
    moved = any(
        (stored.source, stored.target, stored.kind) != (asked.source, asked.target, asked.kind)
        for stored, asked in found.changed_channels
    )
    if moved or view.members.isdisjoint(first_view.members):
        theirs = ", ".join(view.processes)
        raise UsageError(f"store {url} belongs to another system, of the processes {theirs}; {_OTHER}")
    # Nothing would start such a process, and no snapshot would complete without it. Processes that joined later may be
    # in no coordinator's description; the first view always is.
    lost = [name for name in found.missing_processes if name in logged_first.members]
    if lost:
        names = ", ".join(repr(name) for name in lost)
        problem = f"store {url} has the process{'es' if len(lost) > 1 else ''} {names}, which the system does not have"
        leave = " and ".join(f"strobe leave {name}" for name in lost)
        raise UsageError(f"{problem}; give the system as it was, and remove it there ({leave}), or {_OTHER}")
    for channel in found.missing_channels:
        # Between processes that joined later, there may be channels that the system does not know.
        if {channel.source, channel.target} <= first_view.members:
            problem = f"store {url} has the channel {channel.id!r}, which the system does not have"
            raise UsageError(f"{problem}; give it that channel, or {_OTHER}")
    for stored, asked in found.changed_channels:
        # It would keep its old hash, and nobody would notice that the requested one is not used.
        problem = f"channel {stored.id!r} is hashed by {stored.hash} in the store {url}"
        raise UsageError(f"{problem}, and cannot change to {asked.hash}; give it hash='{stored.hash}', or {_OTHER}")
    for channel in found.added_channels:
        problem = f"the system has the channel {channel.id!r}, which the store {url} does not have"
        raise UsageError(f"{problem}: nothing would be sent on it; remove it, or {_OTHER}")
