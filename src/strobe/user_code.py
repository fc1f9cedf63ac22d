"""Errors in a user's own code, told in one line: what failed, in which file and line."""

import asyncio
import sysconfig
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import CodeType

from strobe.errors import StrobeError, UsageError

STROBE = f"{Path(__file__).parent}/"
RAISED = (Exception, SystemExit)
"""What a user's code may raise. One that calls `sys.exit` has failed: nobody has asked its node to end."""
FAILURES = (*RAISED, asyncio.CancelledError)
"""What it may let through. Where nothing is awaited, nobody has cancelled the task that runs it."""

_PYTHON = tuple(f"{sysconfig.get_path(name)}/" for name in ("stdlib", "platstdlib"))
_INSTALLED = tuple(f"{sysconfig.get_path(name)}/" for name in ("purelib", "platlib"))


def is_users(file: str | None) -> bool:
    """Tell whether the user wrote `file`: it is neither Strobe's nor Python's, nor was it installed."""
    return file is not None and not file.startswith(("<", STROBE, *_PYTHON, *_INSTALLED))


def _is_installed(file: str) -> bool:
    """Tell whether `file` is a library's; a system may come from there as well."""
    return file.startswith(_INSTALLED) and not file.startswith(STROBE)


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


def place_of_code(code: CodeType) -> str:
    """Return the file and line at which a function begins."""
    return f"{_short(code.co_filename)}:{code.co_firstlineno}"


def text_of(error: BaseException) -> str:
    """Return what the error says of itself, as text that can be sent: a name of a file may be none."""
    try:
        text = str(error)
    except Exception:  # noqa: BLE001 -- the user's own class
        return "its text cannot be shown"
    return _sendable(text)


def summary_of(error: BaseException) -> str:
    """Return the error in one line, as Python names it."""
    text = error.msg if isinstance(error, SyntaxError) else " ".join(text_of(error).split())
    if isinstance(error, UsageError):
        return text
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def explain(error: BaseException) -> str:
    """Return the error in one line, and where in the user's code it happened, if it was there."""
    place = place_of(error)
    what = text_of(error) if isinstance(error, StrobeError) else summary_of(error)
    return _sendable(f"{what} ({place})") if place else what


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


def _sendable(text: str) -> str:
    return text.encode("utf-8", "backslashreplace").decode()


def _short(file: str) -> str:
    """Return `file` as seen from here, where that is shorter."""
    try:
        return str(Path(file).relative_to(Path.cwd()))
    except (ValueError, OSError):  # it is elsewhere, or there is no "here" any more
        return file
