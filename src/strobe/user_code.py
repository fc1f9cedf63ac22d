"""Describes errors in a user's own code in one line: what failed, in which file and line."""

import asyncio
import inspect
import signal
import sys
import sysconfig
import textwrap
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import CodeType, FrameType
from typing import NamedTuple, NoReturn

import msgspec

from strobe.errors import StrobeError, UsageError, UserCodeFailed

STROBE = f"{Path(__file__).parent}/"
RAISED = BaseException
"""A user's code may raise anything. After catching it, check with `is_failure`."""

STACK_FRAMES_MAX = 50

_RAISED_FOR_USERS = (UsageError, NotImplementedError, TypeError, msgspec.MsgspecError)
"""Raised by our own code for mistakes of a process: an unknown channel, a value that cannot be encoded."""
_PYTHON = tuple(f"{sysconfig.get_path(name)}/" for name in ("stdlib", "platstdlib"))
_INSTALLED = tuple(f"{sysconfig.get_path(name)}/" for name in ("purelib", "platlib"))
_ASYNCIO = f"{Path(inspect.getfile(asyncio)).parent}/"


class CarriedError(Exception):
    """Wraps an exception that has another meaning in `await`, such as a cancellation. That exception is its cause."""

    def __str__(self) -> str:
        return f"{summary_of(self.__cause__)} was raised" if self.__cause__ is not None else ""


def carry(error: BaseException) -> BaseException:
    """Return `error`, raised in a thread, in a form that `await` can raise."""
    if not isinstance(error, StopIteration | asyncio.CancelledError | GeneratorExit):
        return error
    carried = CarriedError()
    carried.__cause__ = error
    return carried


def is_failure(error: BaseException, *, awaited: bool = False, may_exit: bool = False) -> bool:
    """Return whether `error`, raised while a user's code ran, is a failure of that code. Decided only here.

    Every exception is a failure, whatever its class. A handler that calls `sys.exit`, or lets a GeneratorExit or a
    cancellation through, has not done its work, and nothing requested the end of its process. With these exceptions:
    - `awaited`: the code was awaited, so a cancellation comes from the task that awaits it.
    - `may_exit`: it runs in a program that may end itself (SystemExit) or be interrupted at any time.
    - Ctrl-C: a KeyboardInterrupt while Python's own SIGINT handler is installed. A node installs another one, which
      raises nothing, so there a KeyboardInterrupt was raised by the user's code.
    """
    if isinstance(error, KeyboardInterrupt):
        return not may_exit and signal.getsignal(signal.SIGINT) is not signal.default_int_handler
    if isinstance(error, asyncio.CancelledError | GeneratorExit):
        return not awaited
    return not (may_exit and isinstance(error, SystemExit))


def is_users(file: str | None) -> bool:
    """Return whether `file` is the user's own: not Strobe's, not Python's, and not installed."""
    return file is not None and not file.startswith(("<", STROBE, *_PYTHON, *_INSTALLED))


def _is_installed(file: str) -> bool:
    """Return whether `file` belongs to an installed library. A system may be defined in one."""
    return file.startswith(_INSTALLED) and not file.startswith(STROBE)


def place_of(error: BaseException) -> str | None:
    """Return file, line and function of the innermost frame in the user's code, else in a library, else None."""
    if isinstance(error, SyntaxError) and error.filename:
        return f"{_short(error.filename)}:{error.lineno}"
    if isinstance(error, CarriedError) and error.__cause__ is not None:
        error = error.__cause__
    frames = traceback.extract_tb(error.__traceback__)
    for is_wanted in (is_users, _is_installed):
        for frame in reversed(frames):
            if is_wanted(frame.filename):
                function = "" if frame.name.startswith("<") else f", in {frame.name}()"
                return f"{_short(frame.filename)}:{frame.lineno}{function}"
    return None


def place_of_code(code: CodeType) -> str:
    """Return the file and line at which a function begins."""
    return place_of_line(code.co_filename, code.co_firstlineno)


def place_of_line(file: str, line: int) -> str:
    """Return a file and line as text; the file relative to the current directory, if it is below that."""
    return f"{_short(file)}:{line}"


def handler_running() -> str:
    """Return the user's function that Strobe or the event loop has called, and where it is defined."""
    outermost: FrameType | None = None
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        code = frame.f_code
        if not (code.co_filename.startswith((STROBE, _ASYNCIO)) or code.co_name == "<module>"):
            outermost = frame
        elif outermost is not None:
            break
        frame = frame.f_back
    if outermost is None:
        return "no handler"
    return f"{_function_of(outermost.f_code)} at {place_of_code(outermost.f_code)}"


class RunningCall(NamedTuple):
    """A call that has not returned. `owner` is the object whose method it is, if any.

    `place` is the line of the user's code that runs now, `stack` the whole stack from the call inwards.
    """

    owner: object
    function: str
    place: str
    stack: str

    def describe(self, process: str) -> str:
        """Return `Branch.receive() of b at bank.py:26`."""
        return f"{self.function}{f' of {process}' if process else ''} at {self.place}"


def users_frames(innermost: FrameType | None) -> tuple[FrameType, FrameType] | None:
    """Return two frames of the user's code in a thread: the innermost, and that of the function that Strobe or the
    event loop has called. None if there is none.
    """
    current = called = None
    frame = innermost
    while frame is not None:
        code = frame.f_code
        if is_users(code.co_filename) and code.co_name != "<module>":
            current, called = current or frame, frame
        elif called is not None and code.co_filename.startswith((STROBE, _ASYNCIO)):
            break
        frame = frame.f_back
    return (current, called) if current is not None and called is not None else None


def running_call(innermost: FrameType, current: FrameType, called: FrameType) -> RunningCall:
    """Describe the call with these frames, as from `users_frames`."""
    code = called.f_code
    inside = "" if current is called else f" in {_function_of(current.f_code)}"
    place = f"{_short(current.f_code.co_filename)}:{current.f_lineno}{inside}"
    owner = called.f_locals.get(code.co_varnames[0]) if code.co_argcount else None
    return RunningCall(owner, _function_of(code), place, _stack(innermost, called))


def _stack(innermost: FrameType, outermost: FrameType) -> str:
    frames = []
    for frame, line in traceback.walk_stack(innermost):
        frames.append((frame, line))
        if frame is outermost:
            break
    lines = "".join(traceback.StackSummary.extract(iter(reversed(frames[:STACK_FRAMES_MAX]))).format())
    return textwrap.dedent(lines).rstrip()


def _function_of(code: CodeType) -> str:
    return f"{code.co_qualname.rpartition('<locals>.')[2]}()"


def text_of(error: BaseException) -> str:
    """Return the message of the error, in valid UTF-8: it may contain a file name that is not."""
    try:
        text = str(error)
    except Exception:  # noqa: BLE001 -- the user's own class
        return "its text cannot be shown"
    return _sendable(text)


def summary_of(error: BaseException) -> str:
    """Return the error in one line, with its class as in Python."""
    text = error.msg if isinstance(error, SyntaxError) else " ".join(text_of(error).split())
    if isinstance(error, UsageError):
        return text
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def explain(error: BaseException) -> str:
    """Return the error in one line, with its location if it happened in the user's code."""
    place = place_of(error)
    what = text_of(error) if isinstance(error, StrobeError) else summary_of(error)
    return _sendable(f"{what} ({place})") if place else what


@contextmanager
def loading(what: str) -> Iterator[None]:
    """Convert any exception that a user's file raises while it is run into a UsageError with the location."""
    try:
        yield
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # a file may even call sys.exit
        place = place_of(error)
        where = f" ({place})" if place else ""
        raise UsageError(f"{what}: {summary_of(error)}{where}; correct it, then run the command again") from error


@contextmanager
def calling(what: str) -> Iterator[None]:
    """Convert a failure of a user's code that is called here into UserCodeFailed; `what` says which call failed."""
    try:
        yield
    except RAISED as error:
        raise_failure(what, error)


def raise_failure(what: str, error: BaseException) -> NoReturn:
    """Raise UserCodeFailed if `error` is a failure of a user's code, else raise `error`; like `calling`."""
    if not is_users_failure(error):
        raise error
    place = place_of(error)
    where = f" ({place})" if place else ""
    raise UserCodeFailed(f"{what}: {summary_of(error)}{where}") from error


def is_users_failure(error: BaseException) -> bool:
    """Return whether `error`, raised in a call of a user's code, comes from that code, and not from Strobe's own."""
    if isinstance(error, StrobeError) and not isinstance(error, UsageError):
        return False
    if isinstance(error, AssertionError) and is_raised_by_strobe(error):
        return False
    return is_failure(error) and (place_of(error) is not None or isinstance(error, _RAISED_FOR_USERS))


def is_raised_by_strobe(error: BaseException) -> bool:
    return traceback.extract_tb(error.__traceback__)[-1].filename.startswith(STROBE)


def _sendable(text: str) -> str:
    return text.encode("utf-8", "backslashreplace").decode()


def _short(file: str) -> str:
    """Return `file` relative to the current directory, if it is below that."""
    try:
        return str(Path(file).relative_to(Path.cwd()))
    except (ValueError, OSError):  # it is elsewhere, or the current directory no longer exists
        return file
