"""Snapshot ids: (epoch, counter, initiator), printed so that they sort by time (E1).

The counter is a logical clock: the initiator takes one more than the highest counter it has seen. So a snapshot begun
by a process that knew of another one sorts after it. Two initiators that do not know of each other may take the same
counter; the ids then differ in the initiator's name.

People type and read a short form, `1.7` for epoch 1 and counter 7, if only one snapshot has this number.
"""

import re
from collections import Counter
from collections.abc import Callable, Iterable

import msgspec

from strobe.errors import UsageError
from strobe.names import Name, is_name, shown
from strobe.protocol.values.bounds import COUNT_MAX, Count

COORDINATOR = "coordinator"
"""The initiator in ids that the sequencer issued; no process may have this name."""

_SHORT = re.compile(r"([0-9]{1,18})\.([0-9]{1,18})")
_PRINTED = re.compile(r"([0-9]{6,40})-([0-9]{8,40})-(.+)")


class SnapshotId(msgspec.Struct, frozen=True, order=True, array_like=True):
    """The id of a snapshot. Ids compare field by field: first the epoch, then the counter."""

    epoch: Count
    counter: Count
    initiator: Name

    def __str__(self) -> str:
        return f"{self.epoch:06d}-{self.counter:08d}-{self.initiator}"

    @classmethod
    def parse(cls, printed: str) -> "SnapshotId":
        match = _PRINTED.fullmatch(printed)
        if match is None or not is_name(match[3]):
            raise UsageError(f"{shown(printed)} is not a snapshot id; one looks like 000001-00000042-coordinator")
        parsed = cls(int(match[1]), int(match[2]), match[3])
        if max(parsed.epoch, parsed.counter) > COUNT_MAX:
            raise UsageError(f"the snapshot id {shown(printed)} has a number beyond {COUNT_MAX}")
        return parsed


def full_prefix(name: str) -> str:
    """Return the beginning of the ids that `name` means: for `1.7` epoch 1 and counter 7, otherwise `name` itself."""
    match = _SHORT.fullmatch(name)
    return f"{int(match[1]):06d}-{int(match[2]):08d}-" if match else name


def number_prefix(snapshot: str) -> str:
    """Return the beginning of an id, without its initiator; anything else unchanged."""
    match = _PRINTED.fullmatch(snapshot)
    return f"{match[1]}-{match[2]}-" if match else snapshot


def is_named(snapshot: str | None, name: str) -> bool:
    """Return whether `name` is this id, whole or short."""
    return snapshot is not None and name in (snapshot, short_name(snapshot))


def short_name(snapshot: str) -> str:
    """Return the short form of an id, which may be that of others as well; anything else unchanged."""
    match = _PRINTED.fullmatch(snapshot)
    return f"{int(match[1])}.{int(match[2])}" if match else snapshot


def short_names(snapshots: Iterable[str]) -> Callable[[str], str]:
    """Return a function that shortens each of these ids to `1.7`; ids with the same number stay as they are."""
    times = Counter(map(number_prefix, snapshots))

    def shorten(snapshot: str) -> str:
        return short_name(snapshot) if times[number_prefix(snapshot)] == 1 else snapshot

    return shorten
