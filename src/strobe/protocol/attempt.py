"""A snapshot that has begun and has no outcome yet, as the coordinator sees it."""

import msgspec

from strobe.protocol.log import Begin
from strobe.protocol.view import View


class Attempt(msgspec.Struct):
    """The view it is of, whose fragments have come, how it is ending."""

    begin: Begin
    view: View
    deadline_us: int
    arrived: set[str]
    aborting: bool = False
    committing: bool = False

    @property
    def ending(self) -> bool:
        return self.aborting or self.committing

    @property
    def whole(self) -> bool:
        return self.arrived.issuperset(self.view.processes)
