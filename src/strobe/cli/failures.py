"""Errors in a user's own code, told in one paragraph: what failed, in which process and event, file and line."""

import sysconfig
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

import msgspec

import strobe
from strobe.errors import UsageError
from strobe.simulation.node import Node
from strobe.simulation.world import World

_STROBE = f"{Path(strobe.__file__).parent}/"
_PYTHON = tuple(f"{sysconfig.get_path(name)}/" for name in ("stdlib", "platstdlib"))
_INSTALLED = tuple(f"{sysconfig.get_path(name)}/" for name in ("purelib", "platlib"))

_RAISED_FOR_USERS = (UsageError, NotImplementedError, TypeError, msgspec.MsgspecError)
"""What our own code raises when a process does something wrong: an unknown channel, a value without an encoding."""


def is_users(file: str | None) -> bool:
    """Tell whether the user wrote `file`: it is neither Strobe's nor Python's, nor was it installed."""
    return file is not None and not file.startswith(("<", _STROBE, *_PYTHON, *_INSTALLED))


def _is_installed(file: str) -> bool:
    """Tell whether `file` is a library's; a system may come from there as well."""
    return file.startswith(_INSTALLED) and not file.startswith(_STROBE)


def place_of(error: BaseException) -> str | None:
    """Return file, line and function of the innermost place in the user's code, else a library's, else None."""
    if isinstance(error, SyntaxError) and error.filename:
        return f"{_short(error.filename)}:{error.lineno}"
    frames = traceback.extract_tb(error.__traceback__)
    for is_wanted in (is_users, _is_installed):
        for frame in reversed(frames):
            if is_wanted(frame.filename):
                function = "" if frame.name.startswith("<") else f", in {frame.name}()"
                return f"{_short(frame.filename)}:{frame.lineno}{function}"
    return None


def summary_of(error: BaseException) -> str:
    """Return the error in one line, as Python names it."""
    text = error.msg if isinstance(error, SyntaxError) else " ".join(str(error).split())
    if isinstance(error, UsageError):
        return text
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


@contextmanager
def loading(what: str) -> Iterator[None]:
    """Turn whatever a user's file raises while it is run into a UsageError that says where."""
    try:
        yield
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # a file may even exit
        place = place_of(error)
        where = f" ({place})" if place else ""
        raise UsageError(f"{what}: {summary_of(error)}{where}; correct it, then run the command again") from error


@contextmanager
def running(command: str) -> Iterator[None]:
    """Turn what a user's handler raises during a run into a UsageError; `command` shows it again."""
    try:
        yield
    except Exception as error:
        what = _what_failed(error)
        place = place_of(error)
        ours = place is None and not isinstance(error, _RAISED_FOR_USERS)
        if what is None or ours or (isinstance(error, AssertionError) and _raised_by_us(error)):
            raise
        where = f" ({place})" if place else ""
        raise UsageError(
            f"{what}: {summary_of(error)}{where}; correct it, then run it again:\n    {command}"
        ) from error


def _what_failed(error: Exception) -> str | None:
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


def _raised_by_us(error: Exception) -> bool:
    innermost = traceback.extract_tb(error.__traceback__)[-1]
    return innermost.filename.startswith(_STROBE)


def _short(file: str) -> str:
    """Return `file` as seen from here, where that is shorter."""
    path = Path(file)
    return str(path.relative_to(Path.cwd())) if path.is_relative_to(Path.cwd()) else file
