"""Errors in a user's own code, told in one paragraph: what failed, in which process and event, file and line."""

import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

import msgspec

from strobe.errors import UsageError
from strobe.simulation.node import Node
from strobe.simulation.world import World
from strobe.user_code import RAISED, STROBE, is_failure, place_of, summary_of

_RAISED_FOR_USERS = (UsageError, NotImplementedError, TypeError, msgspec.MsgspecError)
"""What our own code raises when a process does something wrong: an unknown channel, a value without an encoding."""


@contextmanager
def running(command: str) -> Iterator[None]:
    """Turn what a user's handler raises during a run into a UsageError; `command` shows it again."""
    try:
        yield
    except RAISED as error:
        what = _what_failed(error)
        place = place_of(error)
        ours = place is None and not isinstance(error, _RAISED_FOR_USERS)
        if (
            not is_failure(error)
            or what is None
            or ours
            or (isinstance(error, AssertionError) and _raised_by_us(error))
        ):
            raise
        where = f" ({place})" if place else ""
        raise UsageError(
            f"{what}: {summary_of(error)}{where}; correct it, then run it again:\n    {command}"
        ) from error


def _what_failed(error: BaseException) -> str | None:
    """Name the process and the event under way, from the innermost frame that knows them."""
    for frame, _ in reversed(list(traceback.walk_tb(error.__traceback__))):
        found = _event_in(frame)
        if found is not None:
            return found
    return None


def _event_in(frame: FrameType) -> str | None:
    owner, names, function = frame.f_locals.get("self"), frame.f_locals, frame.f_code.co_name
    if function == "conserved_value":
        return "the function `conserved` of the system failed"
    if isinstance(owner, World) and function == "__init__":
        return "the system failed before its start, in capture() or `conserved`"
    if not isinstance(owner, Node):
        return None
    match function:
        case "capture":
            return f"process {owner.name!r} failed in capture(), after {owner.position} events"
        case "run_event":
            return f"process {owner.name!r} failed in event {owner.position} ({names['name']})"
        case "_deliver" if "message" not in names:
            return f"process {owner.name!r} cannot decode what came on {names['channel']} as one of its `messages`"
        case "_deliver":
            message = f"message {names.get('ordinal', '?')} on {names['channel']}"
            return f"process {owner.name!r} failed in event {owner.position} (receive, {message})"
    return None


def _raised_by_us(error: BaseException) -> bool:
    innermost = traceback.extract_tb(error.__traceback__)[-1]
    return innermost.filename.startswith(STROBE)
