"""Since when each trouble of the status has lasted. It is forgotten once it is over."""

from collections.abc import Sequence

import msgspec

from strobe.runtime.messages.api_documents import Trouble


class TroubleTimes:
    """The beginnings of the troubles that last, by their matter."""

    def __init__(self) -> None:
        self._since_us: dict[str, int] = {}

    def dated(self, troubles: Sequence[Trouble], now_us: int) -> list[Trouble]:
        """Return all troubles that there are now, each with its beginning."""
        self._since_us = {one.matter: self._since_us.get(one.matter, now_us) for one in troubles}
        return [msgspec.structs.replace(one, since_us=self._since_us[one.matter]) for one in troubles]
