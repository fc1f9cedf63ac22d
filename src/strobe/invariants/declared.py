"""The invariants of a system (G1, E12): plain Python functions of a snapshot, and conditions (docs/expressions.md).

A function gets the `GlobalState` of a snapshot. If the invariant holds, it returns True. If the invariant is violated,
it returns False or a text that explains, or an `assert` in it fails. Anything else that it returns or raises is a
mistake in the function, and says nothing about the system.
"""

import traceback
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from strobe.errors import UsageError
from strobe.expressions import ExpressionError, evaluate, parse
from strobe.expressions.values import is_true
from strobe.handlers import Shape, check_finished, check_function
from strobe.invariants.global_state import GlobalState
from strobe.invariants.scope import StateScope, check_fields, check_names, missing_name, values_text
from strobe.user_code import is_raised_by_strobe, place_of, place_of_code, text_of

CONSERVED = "conserved"
RESERVED = (CONSERVED, "deadlock", "termination", "garbage")
"""Conditions that Strobe judges under these names."""
NAME_MAX = 80
"""Maximum length of a name; the name of a longer condition is its beginning."""
_PARAMETERS = ("snapshot",)


class FunctionInvariant:
    """An invariant that is a Python function."""

    def __init__(self, function: Any) -> None:
        name = getattr(function, "__name__", None)
        if callable(function) and (name is None or name == "<lambda>"):
            raise UsageError(
                f"the invariant {function!r} has no name to show; write it as def NAME(snapshot), or as a condition"
            )
        self.name = str(name or type(function).__name__)
        check_function(f"the invariant {self.name}", function, Shape(self.name, _PARAMETERS))
        self._function = function
        code = getattr(function, "__code__", None)
        self._place = f" ({place_of_code(code)})" if code is not None else ""

    def check(self, states: Mapping[str, Any]) -> None:
        """Its mistakes show only in a call."""

    def missing(self, state: GlobalState) -> str | None:
        """Return what the snapshot must have and has not: not known of a function."""
        return None

    def violation(self, state: GlobalState) -> str | None:
        """Return None if the invariant holds, else an explanation. Its own mistakes are raised."""
        try:
            found = self._function(state)
        except AssertionError as error:
            if is_raised_by_strobe(error):
                raise
            return _explained(error)
        check_finished(f"the invariant {self.name}", found)
        if found is True:
            return None
        if found is False:
            return state.brief()
        if isinstance(found, str) and found:
            return found
        shown = "None" if found is None else "an empty text" if found == "" else f"a {type(found).__name__}"
        raise UsageError(
            f"the invariant {self.name}{self._place} returned {shown}; return True if it holds, else False or a text "
            "that explains"
        )


class ConditionInvariant:
    """An invariant that is a condition in the language of docs/expressions.md."""

    def __init__(self, text: str, processes: Collection[str], channels: Collection[str]) -> None:
        self._text = text
        self._node = parse(text)
        check_names(text, self._node, processes, channels)
        words = " ".join(text.split())
        self.name = words if len(words) <= NAME_MAX else f"{words[: NAME_MAX - 3]}..."

    def check(self, states: Mapping[str, Any]) -> None:
        """Raise ExpressionError if a state cannot have a field that it names."""
        check_fields(self._text, self._node, states)

    def missing(self, state: GlobalState) -> str | None:
        """Return a process or channel that it names and that is not in the snapshot, in words."""
        return missing_name(self._node, state)

    def violation(self, state: GlobalState) -> str | None:
        """Return None if the condition is true, else the values in it."""
        return None if is_true(evaluate(self._node, StateScope(state))) else values_text(self._node, state)


DeclaredInvariant = FunctionInvariant | ConditionInvariant


def declared_invariants(
    given: Any, processes: Collection[str], channels: Collection[str]
) -> tuple[DeclaredInvariant, ...]:
    """Return the invariants of a system; raise UsageError that names the mistake, and its place in a condition."""
    if isinstance(given, str) or callable(given) or not isinstance(given, Iterable):
        shown = repr(given) if isinstance(given, str) else getattr(given, "__name__", type(given).__name__)
        raise UsageError(f"`invariants` is {shown}, not a list; write invariants=[{shown}]")
    found = [_declared(one, processes, channels) for one in given]
    _require_names(found)
    return tuple(found)


def _declared(given: Any, processes: Collection[str], channels: Collection[str]) -> DeclaredInvariant:
    if not isinstance(given, str):
        return FunctionInvariant(given)
    try:
        return ConditionInvariant(given, processes, channels)
    except ExpressionError as error:
        raise ExpressionError(error.text, error.column, f"in `invariants`: {error.problem}") from error


def _require_names(invariants: Sequence[DeclaredInvariant]) -> None:
    seen: set[str] = set()
    for one in invariants:
        if one.name in RESERVED:
            raise UsageError(f"an invariant is named {one.name!r}, which is a condition of Strobe's own; rename it")
        if one.name in seen:
            raise UsageError(f"two invariants are named {one.name!r}; names must differ, since verdicts go by name")
        seen.add(one.name)


def _explained(error: AssertionError) -> str:
    """Return the message of a failed `assert`, else the `assert` itself, with its place."""
    text = " ".join(text_of(error).split())
    place = place_of(error)
    if not text:
        frames = traceback.extract_tb(error.__traceback__)
        text = (frames[-1].line if frames else "") or "an assert failed"
    return f"{text} ({place})" if place else text
