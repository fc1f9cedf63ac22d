"""Drift: problems that show only in comparison with earlier snapshots (G1). Pure functions over manifests.

A drift check compares a snapshot with the ones committed before it, in log order and in the same epoch, because a
rollback resets positions and channels. Everything it needs is in the log, and no state is kept between batches. So the
result is the same on every machine and after every restart.
"""

from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from typing import NamedTuple

from strobe.causality.proof import Finding
from strobe.protocol.values.log_entries import Commit

WINDOW = 10
"""The number of snapshots compared, including the one that is judged."""

ChannelKey = tuple[str, int]
"""The id of a channel and its incarnation: a channel that was removed and created again is a different one."""


class Observed(NamedTuple):
    """The parts of a snapshot that drift checks compare."""

    epoch: int
    positions: dict[str, int]
    waiting: dict[str, int]
    """Messages in flight to each process."""
    in_flight: dict[ChannelKey, int]
    """Messages in flight on each channel that has any."""


def observe(commit: Commit) -> Observed:
    """Extract from a commit what drift checks compare."""
    manifest = commit.manifest
    incarnations = {channel.id: channel.incarnation for channel in manifest.view.channels}
    positions: dict[str, int] = {}
    waiting: dict[str, int] = {}
    in_flight: dict[ChannelKey, int] = {}
    for process, record in manifest.processes.items():
        positions[process] = record.position
        total = 0
        for channel, section in record.in_flight.items():
            if section.messages:
                in_flight[channel, incarnations.get(channel, 0)] = section.messages
                total += section.messages
        waiting[process] = total
    return Observed(manifest.epoch, positions, waiting, in_flight)


class DriftCheck(NamedTuple):
    """A check of a snapshot against earlier ones; `find` gets the whole window, oldest first."""

    name: str
    find: Callable[[Sequence[Observed]], Iterator[Finding]]


def growing_channels(window: Sequence[Observed]) -> Iterator[Finding]:
    """A channel with more messages in flight in each snapshot than in the one before: its receiver is too slow."""
    growing = list(window[-1].in_flight)
    for before, after in reversed(list(pairwise(window))):
        # Newest first: few channels are left after a step or two.
        growing = [key for key in growing if before.in_flight.get(key, 0) < after.in_flight.get(key, 0)]
    for key in growing:
        counts = [one.in_flight.get(key, 0) for one in window]
        problem = f"has had more in flight in each of {len(counts)} snapshots: {counts[0]} to {counts[-1]} messages"
        yield Finding(CHANNEL_GROWTH, key[0], problem)


def stalled_processes(window: Sequence[Observed]) -> Iterator[Finding]:
    """A process that has messages to receive in every snapshot, but ran no event between them."""
    last = window[-1]
    for process, position in last.positions.items():
        if all(one.positions.get(process) == position and one.waiting[process] for one in window):
            problem = (
                f"stands still at position {position} over {len(window)} snapshots, "
                f"with {last.waiting[process]} messages in flight to it"
            )
            yield Finding(STANDSTILL, process, problem)


CHANNEL_GROWTH = "channel-growth"
STANDSTILL = "standstill"
DRIFT_CHECKS = (DriftCheck(CHANNEL_GROWTH, growing_channels), DriftCheck(STANDSTILL, stalled_processes))
