"""How far a stream has read a log (S1, D2): a position, and the checksum of the entry before it.

The checksum shows that a resumed stream reads the same log. A store restored from an older copy may have grown again
with other entries at the same positions, and the stream would skip all of them up to its offset.
An offset has no checksum if a user chose it, if an earlier Strobe wrote it, or if it follows a damaged entry.
"""

import time
from contextlib import suppress
from typing import Any

from strobe.errors import StoreError, UsageError
from strobe.storage.entries.log_file import entry_name
from strobe.storage.files.checksummed_json import stated_checksum
from strobe.storage.log.commit_reader import CommitReader
from strobe.storage.log.follower import Follower

POSITION, CHECKSUM = "position", "checksum"
POLL_S = 0.1
"""Spark polls for new data much more often, and each poll would be a request to an object store."""

Offset = dict[str, Any]


class OtherLog(StoreError):
    """The log is not the one that an offset refers to; `what` describes the difference."""

    def __init__(self, url: str, what: str) -> None:
        super().__init__(
            url,
            f"{what} before: this is an older copy of the store, and entries added since would be skipped; "
            "put the newer one back, or start over, in another directory (--to) or with another checkpoint",
        )


class StreamedLog:
    """The log of the store at `url`, read by a stream from offset to offset. `store_id` is as for a Follower."""

    def __init__(self, url: str, store_id: str | None = None) -> None:
        self._url = url
        self._store_id = store_id
        self._follower: Follower | None = None
        self._known: Offset | None = None
        self._is_read = False
        self._next_poll_s = 0.0

    @property
    def follower(self) -> Follower:
        if self._follower is None:
            self._follower = Follower(self._url, self._store_id)
        return self._follower

    @property
    def end(self) -> int:
        """The position up to which the log was read."""
        return self._follower.end if self._follower is not None else 0

    def advance(self) -> int:
        """Read the new entries, and return the position after them."""
        end = self.follower.advance()
        self._is_read = True
        return end

    def poll(self) -> None:
        """Read the new entries, unless that was done or tried just now."""
        if time.monotonic() >= self._next_poll_s:
            try:
                self.advance()
            finally:
                self._next_poll_s = time.monotonic() + POLL_S

    def offset(self, position: int) -> Offset:
        """Return the offset at a position, which must have been read."""
        checksum = self.follower.checksum_before(position)
        return {POSITION: position} if checksum is None else {POSITION: position, CHECKSUM: checksum}

    def read_to(self, offset: Offset) -> Follower:
        """Return a follower that has read up to `offset`; raise StoreError if it cannot, or if the log is another."""
        if self.end < offset[POSITION] and self.advance() < offset[POSITION]:
            raise OtherLog(self._url, _ends_before(offset))
        self.require(offset)
        return self.follower

    def require(self, offset: Offset) -> None:
        """Raise OtherLog if the log, as far as it could be read, is not the one of `offset`."""
        if CHECKSUM not in offset or offset == self._known:
            return
        position = offset[POSITION]
        if self.end < position:
            if self._is_read:
                raise OtherLog(self._url, _ends_before(offset))
            return
        if self.follower.checksum_before(position) not in (None, offset[CHECKSUM]):
            raise OtherLog(self._url, f"{entry_name(position - 1)} differs from the entry that was read")
        self._known = offset


class LogHead:
    """The end of the log, polled beside a stream: the snapshots `committed` at or after position `start`."""

    def __init__(self, url: str, store_id: str, start: int) -> None:
        self._url = url
        self._store_id = store_id
        self._follower: Follower | None = None
        self._end = start
        self.committed = 0
        self.problem: str | None = None
        """Why the log cannot be read further now."""

    def poll(self) -> None:
        """Read the new entries."""
        try:
            self._follower = self._follower or Follower(self._url, self._store_id)
            self._follower.advance()
            self.problem = None
        except StoreError as error:
            self.problem = str(error)
        if self._follower is not None:
            new = self._follower.between(self._end, self._follower.end)
            self.committed += sum(one.snapshot_id is not None for one in new)
            self._end = max(self._end, self._follower.end)


def refuse_other_log(url: str, store_id: str, offset: Offset) -> None:
    """Raise UsageError if the log of the store is not the one of `offset`; ignore a log that cannot be read."""
    if CHECKSUM not in offset:
        return
    with suppress(StoreError):
        if stated_checksum(CommitReader(url).read_raw(offset[POSITION] - 1)) == offset[CHECKSUM]:
            return
    log = StreamedLog(url, store_id)
    try:
        log.advance()
        log.require(offset)
    except OtherLog as error:
        raise UsageError(str(error)) from error
    except StoreError:
        pass  # the stream reports it, and waits


def _ends_before(offset: Offset) -> str:
    return f"ends before {entry_name(offset[POSITION])}, up to which it was read"
