"""Restores a process to its initial state, for rollbacks before the first snapshot (R1).

The user's module is not imported again for that. It would define new types, and existing records, messages and states
would be of the old types: `isinstance` would be false for all of them.
"""

from copy import deepcopy

from strobe.errors import UsageError
from strobe.handlers import call
from strobe.process import Process
from strobe.protocol import LocalState
from strobe.storage.content.state_codec import captured_state, decode_state
from strobe.user_code import RAISED, summary_of


class InitialProcess:
    """Keeps a copy of a process that has not run yet, or its captured state if it cannot be copied.

    A process without a copy is reset as if from a snapshot: it restores that state, and keeps whatever else it holds.
    """

    def __init__(self, name: str, process: Process) -> None:
        self._copy: Process | None = None
        self._state: LocalState | None = None
        try:
            self._copy = deepcopy(process)
        except RAISED as error:  # the user's own objects, such as a lock or a connection
            self._state = _captured(name, process, error)

    def reset(self, process: Process) -> Process:
        """Return the process in its initial state; `process` is the current one, and may be the one returned."""
        if self._copy is not None:
            return deepcopy(self._copy)
        assert self._state is not None, "there is a copy or a state"
        call(process, "restore", decode_state(process, self._state))
        return process


def _captured(name: str, process: Process, uncopied: BaseException) -> LocalState:
    try:
        return captured_state(name, process.capture())
    except RAISED as error:  # the user's own code
        raise UsageError(
            f"process {name!r} could not go back to its beginning, which it must when a process crashes before the "
            f"first snapshot: it cannot be copied ({summary_of(uncopied)}), and it cannot be captured before it has "
            f"started ({summary_of(error)}); let capture() work from the beginning on, or give "
            f"{type(process).__name__} a __deepcopy__"
        ) from error
