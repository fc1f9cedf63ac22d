"""Checks that a store belongs to a system: another system's snapshots could never be restored (E9)."""

from strobe.errors import UsageError
from strobe.protocol import View

_OTHER = "give another directory with --store"


def check_store(url: str, epoch: int, view: View, first_view: View, logged_first: View) -> None:
    """Raise UsageError if the store at `url`, now in `view`, is not of the system that starts with `first_view`.

    `logged_first` is the view that the store's system started with.
    """
    if not epoch:
        raise UsageError(f"store {url} was not written by a live system; {_OTHER}")
    known = {channel.id: channel for channel in first_view.channels}
    strange = set(view.processes).isdisjoint(first_view.processes)
    for channel in view.channels:
        here = known.get(channel.id, channel)
        strange |= (here.source, here.target, here.kind) != (channel.source, channel.target, channel.kind)
    if strange:
        theirs = ", ".join(view.processes)
        raise UsageError(f"store {url} belongs to another system, of the processes {theirs}; {_OTHER}")
    _check_processes(url, view, first_view, logged_first)
    _check_channels_of_store(url, view, first_view)
    _check_channels_of_system(url, view, first_view)


def _check_processes(url: str, view: View, first_view: View, logged_first: View) -> None:
    """Refuse a system that lacks a process: nothing would start it, and no snapshot would complete without it.

    Processes that joined later may be in no coordinator's description; the first view always is.
    """
    known = set(first_view.processes)
    lost = [name for name in view.processes if name in logged_first.processes and name not in known]
    if lost:
        names = ", ".join(repr(name) for name in lost)
        problem = f"store {url} has the process{'es' if len(lost) > 1 else ''} {names}, which the system does not have"
        leave = " and ".join(f"strobe leave {name}" for name in lost)
        raise UsageError(f"{problem}; give the system as it was, and let it go from there ({leave}), or {_OTHER}")


def _check_channels_of_store(url: str, view: View, first_view: View) -> None:
    known = {channel.id: channel for channel in first_view.channels}
    for channel in view.channels:
        # Between processes that joined later, there may be channels that the system does not know.
        both = {channel.source, channel.target} <= set(first_view.processes)
        if both and channel.id not in known:
            problem = f"store {url} has the channel {channel.id!r}, which the system does not have"
            raise UsageError(f"{problem}; give it that channel, or {_OTHER}")
        # It would keep its old hash, and nobody would notice that the requested one is not used.
        if (asked := known.get(channel.id, channel).hash) != channel.hash:
            problem = f"channel {channel.id!r} is hashed by {channel.hash} in the store {url}"
            raise UsageError(f"{problem}, and cannot change to {asked}; give it hash='{channel.hash}', or {_OTHER}")


def _check_channels_of_system(url: str, view: View, first_view: View) -> None:
    there = {channel.id for channel in view.channels}
    for channel in first_view.channels:
        both = {channel.source, channel.target} <= set(view.processes)
        if both and channel.id not in there:
            problem = f"the system has the channel {channel.id!r}, which the store {url} does not have"
            raise UsageError(f"{problem}: nothing would ever travel on it; take it away, or {_OTHER}")
