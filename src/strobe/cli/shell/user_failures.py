"""Reports errors in a user's code in one paragraph: what failed, in which process and event, file and line."""

import traceback
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from types import FrameType
from typing import Any

import msgspec

from strobe.errors import StrobeError, UsageError, UserCodeFailed
from strobe.simulation.node import Node
from strobe.simulation.replay import Replay
from strobe.simulation.rollbacks import Rollbacks
from strobe.simulation.world import World
from strobe.user_code import RAISED, STROBE, is_failure, place_of, summary_of

_RAISED_FOR_USERS = (UsageError, NotImplementedError, TypeError, msgspec.MsgspecError)
"""Raised by our own code for mistakes of a process: an unknown channel, a value that cannot be encoded."""


@contextmanager
def running(command: str | None = None) -> Iterator[None]:
    """Turn exceptions of a user's code during a run into UserCodeFailed; `command`, if given, reproduces it."""
    try:
        yield
    except UserCodeFailed as error:
        raise UserCodeFailed(f"{error}; {_again(command)}") from error
    except RAISED as error:
        what = _what_failed(error)
        if not is_failure(error) or what is None:
            raise
        place = place_of(error)
        where = f" ({place})" if place else ""
        raise UserCodeFailed(f"{what}: {summary_of(error)}{where}; {_again(command)}") from error


def _again(command: str | None) -> str:
    return f"correct it, then run it again:\n    {command}" if command is not None else "correct it, then try again"


def _what_failed(error: BaseException) -> str | None:
    """Name the user's function that failed, from the innermost frame that shows it; None if the failure is ours."""
    if isinstance(error, StrobeError) and not isinstance(error, UsageError):
        return None
    if isinstance(error, AssertionError) and _raised_by_us(error):
        return None
    if place_of(error) is None and not isinstance(error, _RAISED_FOR_USERS):
        return None
    for frame, _ in reversed(list(traceback.walk_tb(error.__traceback__))):
        found = _event_in(frame)
        if found is not None:
            return found
    # Called from a function that is not listed below: still the user's failure, if our code did not raise it.
    return None if _raised_by_us(error) else "the system's own code failed"


def _event_in(frame: FrameType) -> str | None:
    owner, names, function = frame.f_locals.get("self"), frame.f_locals, frame.f_code.co_name
    if function == "conserved_value":
        return "the function `conserved` of the system failed"
    if isinstance(owner, World) and function == "__init__":
        return "the system failed before its start, in capture() or `conserved`"
    if isinstance(owner, Rollbacks) and function == "forget":
        return f"process {names['node'].name!r} failed in restore()"
    if isinstance(owner, Replay):
        return _replayed_in(names, function)
    if not isinstance(owner, Node):
        return None
    match function:
        case "take_state":
            return f"process {owner.name!r} failed in restore() of {names['restored']}"
        case "capture":
            return f"process {owner.name!r} failed in capture(), after {owner.position} events"
        case "run_event":
            return f"process {owner.name!r} failed in event {owner.position} ({names['name']})"
        case "_deliver" if "message" not in names:
            return _undecodable(owner, names["channel"])
        case "_deliver":
            message = f"message {names.get('ordinal', '?')} on {names['channel']}"
            return f"process {owner.name!r} failed in event {owner.position} (receive, {message})"
    return None


def _undecodable(node: Node, channel: str) -> str:
    incoming = node.protocol.incoming.get(channel) or node.protocol.ending.get(channel)
    sender = f"; find where process {incoming.spec.source!r} sends it" if incoming is not None else ""
    return f"process {node.name!r} cannot decode a message on {channel} as one of its `messages`{sender}"


def _replayed_in(names: Mapping[str, Any], function: str) -> str | None:
    match function:
        case "_handle":
            return f"process {names['name']!r} failed in event {names['event'].ref.position} of the trace"
        case "state":
            return f"process {names['process']!r} failed in capture()"
        case "_restore" if "process" in names:
            return f"process {names['name']!r} failed in restore() at the beginning of the trace"
    return None


def _raised_by_us(error: BaseException) -> bool:
    innermost = traceback.extract_tb(error.__traceback__)[-1]
    return innermost.filename.startswith(STROBE)
