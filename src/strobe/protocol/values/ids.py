"""Snapshot ids: (epoch, counter, initiator), printed so that they sort by time (E1).

The counter is a logical clock: the initiator takes one more than the highest counter it has seen. So a snapshot begun
by a process that knew of another one sorts after it. Two initiators that do not know of each other may take the same
counter; the ids then differ in the initiator's name.
"""

import re

import msgspec

from strobe.errors import UsageError
from strobe.names import Name, is_name, shown
from strobe.protocol.values.bounds import COUNT_MAX, Count

COORDINATOR = "coordinator"
"""The initiator in ids that the sequencer issued; no process may have this name."""

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
