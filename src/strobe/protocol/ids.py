"""Snapshot ids: (epoch, counter, initiator), printed so that they sort by time (E1).

The counter is a logical clock: whoever names a snapshot takes one more than the highest counter it has seen, so a
snapshot begun after another was heard of sorts behind it. Two initiators that do not know of each other may take the
same counter; their names tell the ids apart.
"""

import re

import msgspec

from strobe.errors import UsageError

COORDINATOR = "coordinator"
"""The initiator's name in ids that the sequencer issued; no process may have it."""

_PRINTED = re.compile(r"(\d{6,})-(\d{8,})-(.+)")


class SnapshotId(msgspec.Struct, frozen=True, order=True, array_like=True):
    """Compared field by field: first the epoch, then the counter."""

    epoch: int
    counter: int
    initiator: str

    def __str__(self) -> str:
        return f"{self.epoch:06d}-{self.counter:08d}-{self.initiator}"

    @classmethod
    def parse(cls, printed: str) -> "SnapshotId":
        match = _PRINTED.fullmatch(printed)
        if match is None:
            raise UsageError(f"{printed!r} is not a snapshot id; one looks like 000001-00000042-coordinator")
        return cls(int(match[1]), int(match[2]), match[3])
