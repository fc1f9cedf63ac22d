"""A process as it was before it ran: what everybody goes back to while there is no snapshot yet (R1).

The user's module is not run again for that. It would make types of its own, and the records of sources, the messages
and the states that the node has to do with would be of the types from before: `isinstance` would be false of all.
"""

from copy import deepcopy

from strobe.errors import UsageError
from strobe.handlers import call
from strobe.process import Process
from strobe.protocol import LocalState
from strobe.storage.content.state_codec import decode_state, encode_state
from strobe.user_code import RAISED, summary_of


class Beginning:
    """Keeps a copy of a process that has not run yet; of one that cannot be copied, the state that it captures.

    Such a process goes back as it does to a snapshot: it restores that state, and what else it holds stays.
    """

    def __init__(self, name: str, process: Process) -> None:
        self._copy: Process | None = None
        self._state: LocalState | None = None
        try:
            self._copy = deepcopy(process)
        except RAISED as error:  # the user's own objects, such as a lock or a connection
            self._state = _captured(name, process, error)

    def again(self, process: Process) -> Process:
        """Return a process as it was in the beginning; `process` is what it has become, and may be the one returned."""
        if self._copy is not None:
            return deepcopy(self._copy)
        assert self._state is not None, "there is a copy or a state"
        call(process, "restore", decode_state(process, self._state))
        return process


def _captured(name: str, process: Process, uncopied: BaseException) -> LocalState:
    try:
        return LocalState(0, *encode_state(name, process))
    except RAISED as error:  # the user's own code
        raise UsageError(
            f"process {name!r} could not go back to its beginning, which it must when a process crashes before the "
            f"first snapshot: it cannot be copied ({summary_of(uncopied)}), and it cannot be captured before it has "
            f"started ({summary_of(error)}); let capture() work from the beginning on, or give "
            f"{type(process).__name__} a __deepcopy__"
        ) from error
