"""Checks that Strobe can call a user's methods and functions (E13).

Strobe calls them and uses their return values. It never awaits or iterates. A coroutine function or a generator
function would therefore run nothing: its messages would be lost without an error. Such a function, or one with other
parameters, is refused when the `System` is built. A mistake that shows only in a call, such as a lambda around a
coroutine function, is refused at the call.
"""

import functools
import inspect
from collections.abc import AsyncIterator, Awaitable, Generator, Iterator
from types import FunctionType, MethodType
from typing import Any

import msgspec

from strobe.errors import UsageError
from strobe.user_code import place_of_code

_LAYERS_MAX = 32


class Shape(msgspec.Struct, frozen=True):
    """The arguments that a method is called with. If it `may_yield`, it may be a generator function."""

    name: str
    parameters: tuple[str, ...] = ()
    keywords: tuple[str, ...] = ()
    may_yield: bool = False

    def call(self, *first: str) -> str:
        """Return the call as source text, with `first` before the arguments."""
        keywords = ("*", *self.keywords) if self.keywords else ()
        return f"{self.name}({', '.join((*first, *self.parameters, *keywords))})"


PROCESS = (
    Shape("start", ("ctx",)),
    Shape("receive", ("ctx", "channel", "message")),
    Shape("receive_many", ("ctx", "channel", "messages")),
    Shape("timer", ("ctx", "name")),
    Shape("leave", ("ctx",)),
    Shape("capture"),
    Shape("restore", ("state",)),
)
DECLARING = (Shape("waits_for"), Shape("references", may_yield=True), Shape("active"))
CONSERVED = Shape("conserved", ("states", "messages"))
SOURCE = (
    Shape("open", ("position",)),
    Shape("poll", ("records_max",)),
    Shape("position_after", ("count",)),
    Shape("stop_reading"),
    Shape("close"),
)
SOURCE_PROPERTIES = ("position",)
SINK = (
    Shape("restore", ("position",), ("epoch", "origin", "fork")),
    Shape("emit", ("record",)),
    Shape("prepare", ("position",)),
    Shape("release", ("position",)),
    Shape("close"),
)
SINK_PROPERTIES = ("position", "buffered_bytes", "released")


def check_methods(what: str, owner: object, shapes: tuple[Shape, ...]) -> None:
    """Raise UsageError if a method of `owner` cannot be called as its shape requires; `what` names the owner."""
    for shape in shapes:
        name = f"{type(owner).__name__}.{shape.name}"
        check_function(f"{what}: {name}", getattr(owner, shape.name, None), shape, is_method=True)


def check_properties(what: str, owner: object, names: tuple[str, ...]) -> None:
    """Raise UsageError if an attribute of `owner` is a method, or a property that runs nothing."""
    for name in names:
        found = inspect.getattr_static(type(owner), name, None)
        function = found.fget if isinstance(found, property) else found
        attribute = f"{what}: {type(owner).__name__}.{name}"
        if isinstance(found, (FunctionType, staticmethod, classmethod)):
            raise UsageError(
                f"{attribute} is a method{location(function)}; Strobe reads it as an attribute: add @property"
            )
        if isinstance(found, property):
            _check_runs(attribute, function, Shape(name), f"write def {name}(self)")


def check_function(what: str, found: Any, shape: Shape, is_method: bool = False) -> None:
    """Raise UsageError if `found` cannot be called as `shape` requires; `what` is its name in the error."""
    remedy = f"write def {shape.call('self') if is_method else shape.call()}"
    if not callable(found):
        kind = "nothing" if found is None else f"a {type(found).__name__}"
        rename = f"; Strobe calls {shape.name}(): give the attribute another name" if is_method else ""
        raise UsageError(f"{what} is {kind}, not something that can be called{rename}")
    _check_runs(what, found, shape, remedy)
    try:
        signature = inspect.signature(found, follow_wrapped=False)
    except (TypeError, ValueError):  # a builtin may have no readable signature
        return
    try:
        signature.bind(*shape.parameters, **dict.fromkeys(shape.keywords))
    except TypeError:
        raise UsageError(f"{what} takes {signature}{location(found)}; Strobe calls {shape.call()}: {remedy}") from None


def check_finished(function: str, returned: Any) -> None:
    """Raise UsageError if a function returned a coroutine or a generator: its body has not run."""
    if not isinstance(returned, (Awaitable, Generator, AsyncIterator)):
        return
    kind = type(returned).__name__.replace("_", " ")
    name = getattr(returned, "__qualname__", "")
    code = next(
        (getattr(returned, name) for name in ("cr_code", "gi_code", "ag_code") if hasattr(returned, name)), None
    )
    if inspect.iscoroutine(returned) or inspect.isgenerator(returned):
        returned.close()  # otherwise Python warns later that it was never awaited
    what = f"{'an' if kind[0] in 'aeiou' else 'a'} {kind}{f' of {name}' if name else ''}"
    where = f" ({place_of_code(code)})" if code is not None else ""
    problem = f"{function} returned {what}{where}, which Strobe does not run: its effects would be lost"
    raise UsageError(f"{problem}; do the work in the call itself")


def misplaced(process: str, action: str) -> UsageError:
    """Return the error to raise if `process` uses its context outside of an event, or in another thread."""
    return UsageError(
        f"process {process!r} {action} while none of its handlers runs, or in another thread; use the context only in "
        "start, receive, timer and leave, in the thread that calls them"
    )


def handler_finished(process: object, handler: str, returned: Any) -> None:
    """Apply `check_finished` to the return value of a handler."""
    if returned is not None:
        check_finished(f"{type(process).__name__}.{handler}", returned)


def call(owner: object, method: str, *arguments: Any, **keywords: Any) -> None:
    """Call a method of a user's object that returns nothing; raise UsageError if its body has not run."""
    handler_finished(owner, method, getattr(owner, method)(*arguments, **keywords))


def _check_runs(what: str, found: Any, shape: Shape, remedy: str) -> None:
    """Raise UsageError if a call of `found` would run nothing of its body."""
    for layer, is_wrapped in _layers(found):
        if inspect.iscoroutinefunction(layer) or inspect.isasyncgenfunction(layer):
            problem = f"is async{location(layer)}, and Strobe does not await it: nothing in it would run"
            raise UsageError(f"{what} {problem}; {remedy}, without async")
        # A wrapper may run the generator function itself, for example to send what it yields.
        if inspect.isgeneratorfunction(layer) and not is_wrapped and not shape.may_yield:
            problem = f"has a yield in it{location(layer)}, so that calling it runs nothing of it"
            raise UsageError(f"{what} {problem}; {remedy}, without yield")


def _layers(found: Any) -> Iterator[tuple[Any, bool]]:
    """Yield a callable and the callables inside it, each with whether one of the user's wrappers is around it."""
    is_wrapped = False
    for _ in range(_LAYERS_MAX):
        yield found, is_wrapped
        if isinstance(found, functools.partial):
            found = found.func
        elif isinstance(found, (MethodType, staticmethod, classmethod)):
            found = found.__func__
        elif hasattr(found, "__wrapped__"):
            found, is_wrapped = found.__wrapped__, True
        elif isinstance(called := inspect.getattr_static(type(found), "__call__", None), FunctionType):
            found = called  # an object with `__call__`
        else:
            return


def location(found: Any) -> str:
    """Return the source location of a callable, in brackets; empty if it is not known."""
    codes = [code for layer, _ in _layers(found) if (code := getattr(layer, "__code__", None)) is not None]
    return f" ({place_of_code(codes[-1])})" if codes else ""
