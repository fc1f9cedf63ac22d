"""What the names in a condition mean in a global state: fields of states, and counts of events and messages.

A field is an attribute of a struct or dataclass, or an entry of a dict or `KeyedState` with a text as its key. Which
processes and channels a condition names is known when the system is declared, and is checked then. The fields of a
state are known once `capture` has run, and are checked before the system runs.
"""

import dataclasses
from collections.abc import Collection, Mapping
from typing import Any

import msgspec

from strobe.expressions import Expression, ExpressionError, Value
from strobe.expressions.evaluation import leaves
from strobe.expressions.nodes import EVENTS, IN_FLIGHT, RECEIVED, Count, Variable, name_of, unknown_name
from strobe.invariants.global_state import SHOWN_MAX, GlobalState

_VALUES_SHOWN_MAX = 8


class StateScope:
    """The values of the names in a condition, in one global state."""

    def __init__(self, state: GlobalState) -> None:
        self._state = state

    def variable(self, process: str, path: tuple[str, ...]) -> Value:
        value = self._state.states.get(process)
        for name in path:
            value = _fields(value).get(name)
        return _plain(value)

    def count(self, kind: str, name: str | None) -> int:
        if kind == IN_FLIGHT:
            counts: Mapping[str, int] = {name: len(messages) for name, messages in self._state.in_flight.items()}
        elif kind == EVENTS:
            counts = self._state.events
        else:
            counts = self._state.received if kind == RECEIVED else self._state.sent
        return sum(counts.values()) if name is None else counts.get(name, 0)


def check_names(text: str, node: Expression, processes: Collection[str], channels: Collection[str]) -> None:
    """Raise ExpressionError if the condition `text` names a process or channel that does not exist."""
    for leaf in leaves(node):
        is_process = isinstance(leaf, Variable) or leaf.kind == EVENTS
        name = leaf.process if isinstance(leaf, Variable) else leaf.name
        known, what = (processes, "process") if is_process else (channels, "channel")
        if name is not None and name not in known:
            raise unknown_name(text, leaf, f"the system has no {what} {name!r}", name, known)


def check_fields(text: str, node: Expression, states: Mapping[str, Any]) -> None:
    """Raise ExpressionError if the condition `text` names a field that the state of its process cannot have."""
    for leaf in leaves(node):
        if isinstance(leaf, Variable) and leaf.process in states:
            _check_path(text, leaf, states[leaf.process])


def missing_name(node: Expression, state: GlobalState) -> str | None:
    """Return the first process or channel of a condition that is not in the snapshot, in words; else None."""
    for leaf in leaves(node):
        if isinstance(leaf, Variable) and leaf.process not in state.states:
            return f"process {leaf.process!r}"
        if isinstance(leaf, Count) and leaf.name is not None:
            if leaf.kind == EVENTS and leaf.name not in state.states:
                return f"process {leaf.name!r}"
            if leaf.kind != EVENTS and leaf.name not in state.in_flight:
                return f"channel {leaf.name!r}"
    return None


def values_text(node: Expression, state: GlobalState) -> str:
    """Return the names in a condition with their values: `a.balance = -3, in_flight(a->b) = 1`."""
    scope = StateScope(state)
    found: dict[str, Value] = {}
    for leaf in leaves(node):
        value = scope.variable(leaf.process, leaf.path) if isinstance(leaf, Variable) else None
        found[name_of(leaf)] = value if isinstance(leaf, Variable) else scope.count(leaf.kind, leaf.name)
    shown = [f"{name} = {_shown(value)}" for name, value in list(found.items())[:_VALUES_SHOWN_MAX]]
    return ", ".join(shown) + (", ..." if len(found) > _VALUES_SHOWN_MAX else "")


def _check_path(text: str, leaf: Variable, state: Any) -> None:
    """Follow the path as far as the types are known: a dict may get any key later, and None may become a struct."""
    owner, value = f"the state of {leaf.process}", state
    for name in leaf.path:
        if value is None or isinstance(value, Mapping):
            return
        fields = _fields(value)
        if not _has_fields(value):
            kind = type(value).__name__
            raise ExpressionError(text, leaf.column, f"{owner} is a value of type {kind}, which has no field {name!r}")
        if name not in fields:
            raise unknown_name(text, leaf, f"{owner} ({type(value).__name__}) has no field {name!r}", name, fields)
        owner, value = f"{leaf.process}.{'.'.join(leaf.path[: leaf.path.index(name) + 1])}", fields[name]


def _has_fields(value: Any) -> bool:
    return isinstance(value, (msgspec.Struct, Mapping)) or dataclasses.is_dataclass(value)


def _fields(value: Any) -> Mapping[str, Any]:
    if isinstance(value, Mapping):
        return value
    if isinstance(value, msgspec.Struct):
        return {name: getattr(value, name) for name in value.__struct_fields__}
    if dataclasses.is_dataclass(value):
        return {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    return {}


def _plain(value: Any) -> Value:
    """Return a field as a value of the language: a struct becomes an object, and an enum its value."""
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    try:
        return msgspec.to_builtins(value, str_keys=True)
    except (TypeError, ValueError, msgspec.MsgspecError, RecursionError):
        return None


def _shown(value: Value) -> str:
    text = "null" if value is None else str(value).lower() if isinstance(value, bool) else repr(value)
    return text if len(text) <= SHOWN_MAX else f"{text[: SHOWN_MAX - 3]}..."
