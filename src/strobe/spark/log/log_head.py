"""The end of the log, polled beside the stream: the number of commits, and why the log cannot be read, if so."""

from strobe.errors import StoreError
from strobe.storage.log.follower import Follower


class LogHead:
    """Counts the snapshots `committed` at or after position `start` in the log of the store `store_id` at `url`."""

    def __init__(self, url: str, store_id: str, start: int) -> None:
        self._url = url
        self._store_id = store_id
        self._follower: Follower | None = None
        self._end = start
        self.committed = 0
        self.problem: str | None = None
        """Why the log cannot be read further now."""

    def look(self) -> None:
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
