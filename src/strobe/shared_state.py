"""Finds state that processes share, and that no rollback restores (E13).

A process keeps its state in its own attributes. These do not belong to one process:

- a mutable attribute of the class, such as `items = []` in its body, or a default argument;
- a variable of the module;
- an object that is given to several processes.

In the simulator, processes would change each other's state. Live, each program has its own copy, and a rollback to
before the first snapshot does not reset it. Only what `capture` or `restore` uses and a method changes is state:
constants and caches may be shared.
"""

import inspect
from collections import deque
from collections.abc import Collection, Iterator, Mapping
from enum import Enum
from types import BuiltinFunctionType, FunctionType, MethodType, ModuleType
from typing import Any, NamedTuple

import msgspec

from strobe.attribute_uses import CLASS, MODULE, OBJECT, ClassUses, Root, Sources
from strobe.keyed_state import KeyedState
from strobe.process import Process, System

OBJECTS_MAX = 10_000
"""Maximum number of objects examined for each attribute."""

_CONTAINERS = (list, dict, set, bytearray, deque, KeyedState)
_LEAVES = (str, bytes, int, float, complex, bool, type(None), type, Enum, ModuleType, FunctionType, MethodType)


class SharedState(NamedTuple):
    """State that belongs to no process alone, for these processes."""

    processes: tuple[str, ...]
    problem: str


class _Found(NamedTuple):
    """A mutable object, a process that has it, and its path from there. `changed` is set if it is state there."""

    value: Any
    process: str
    path: str
    changed: str | None


def shared_state(system: System, leave_out: Collection[str] = ()) -> Iterator[SharedState]:
    """Yield the state that processes of `system` share, or would share with others of their class."""
    sources = Sources()
    uses: dict[type, _StateUses] = {}
    # A process that another one holds is state too.
    holders = {
        id(process): [_Found(process, name, type(process).__name__, None)]
        for name, process in _processes(system, leave_out)
    }
    for name, process in _processes(system, leave_out):
        kind = type(process)
        used = uses.get(kind) or uses.setdefault(kind, _StateUses(kind, sources))
        for problem in used.problems(process):
            yield SharedState((name,), problem)
        for found in used.objects(name, process):
            holders.setdefault(id(found.value), []).append(found)
    shared = [held for held in holders.values() if _is_shared(held)]
    for held in shared:
        if not any(_is_part(held[0], whole[0]) for whole in shared):
            yield _one_object(held)


def _is_shared(held: list[_Found]) -> bool:
    """Return whether several processes hold an object that is state of one of them."""
    is_state = isinstance(held[0].value, Process) or any(one.changed for one in held)
    return is_state and len({one.process for one in held}) > 1


def _processes(system: System, leave_out: Collection[str]) -> Iterator[tuple[str, Process]]:
    """Yield each process, and the one that it wraps, if any."""
    for name, process in system.processes.items():
        if name not in leave_out:
            yield name, process
            yield from ((name, one) for one in _attributes(process).values() if isinstance(one, Process))


def _attributes(process: Process) -> dict[str, Any]:
    return vars(process) if hasattr(process, "__dict__") else {}


def _is_part(one: _Found, whole: _Found) -> bool:
    return one.process == whole.process and one.path.startswith((f"{whole.path}.", f"{whole.path}["))


def _one_object(held: list[_Found]) -> SharedState:
    kind = type(held[0].value).__name__
    paths = " and ".join(dict.fromkeys(one.path for one in held))
    if isinstance(held[0].value, Process):
        first, *others = held
        paths = " and ".join(dict.fromkeys(one.path for one in others))
        problem = (
            f"{paths} is the process {first.process!r} itself: live it would be a copy of it; send it messages instead"
        )
        return SharedState(tuple(dict.fromkeys(one.process for one in others)), problem)
    place = next(one.changed for one in held if one.changed)
    problem = (
        f"{paths} is the same {kind} in all of them, and is changed at {place}: simulated, they change each other's "
        "state, and live each program has its own; give each process its own object"
    )
    return SharedState(tuple(dict.fromkeys(one.process for one in held)), problem)


class _StateUses:
    """How the methods of one class use state."""

    def __init__(self, kind: type[Process], sources: Sources) -> None:
        self._kind = kind
        uses = ClassUses(kind, Process, sources)
        self._captured = uses.mentioned("capture", "restore")
        found = uses.changes()
        self._changed, self._called = found.changed, found.called
        self._started = uses.assigned("start")

    def problems(self, process: Process) -> Iterator[str]:
        """Yield each attribute of the class and each variable of the module that holds state."""
        for root, place in self._changed.items():
            if root.of == MODULE and root in self._captured:
                yield (
                    f"{self._kind.__name__} keeps state in the variable {root.name!r} of its module, changed at "
                    f"{place}: all processes of a program share it, and no rollback restores it; keep it in "
                    f"self.{root.name}"
                )
            elif root.of != MODULE and self._is_state(root.name) and self._of_class(root, process):
                owner = next((one for one in self._kind.__mro__ if root.name in vars(one)), self._kind)
                yield (
                    f"{owner.__name__}.{root.name} is an attribute of the class, and is changed at {place}: all "
                    f"processes of the class share it, and no rollback restores it; set self.{root.name} in __init__"
                )

    def objects(self, name: str, process: Process) -> Iterator[_Found]:
        """Yield each mutable object in the attributes of `process`."""
        for attribute, value in _attributes(process).items():
            place = self._place(attribute, value) if self._is_state(attribute) else None
            path = f"{self._kind.__name__}.{attribute}"
            yield from (_Found(part, name, step, place) for step, part in _mutable_parts(path, value))

    def _is_state(self, attribute: str) -> bool:
        return bool({Root(OBJECT, attribute), Root(CLASS, attribute)} & self._captured)

    def _place(self, attribute: str, value: Any) -> str | None:
        """Return where an attribute is changed; a method of an object may change it, one of a container is known."""
        root = Root(OBJECT, attribute)
        called = None if isinstance(value, _CONTAINERS) else self._called.get(root)
        return self._changed.get(root) or called

    def _of_class(self, root: Root, process: Process) -> bool:
        """Return whether the state in an attribute is that of the class: assigned there, or an object changed there."""
        if root.name in _attributes(process) or root.name in self._started:
            return False
        return root.of == CLASS or _is_mutable(inspect.getattr_static(self._kind, root.name, None))


def _mutable_parts(path: str, value: Any) -> Iterator[tuple[str, Any]]:
    """Yield each mutable object within `value`, outermost first, with its path."""
    waiting: deque[tuple[str, Any]] = deque([(path, value)])
    seen: set[int] = set()
    while waiting and len(seen) < OBJECTS_MAX:
        step, one = waiting.popleft()
        if isinstance(one, (*_LEAVES, BuiltinFunctionType)) or id(one) in seen:
            continue
        seen.add(id(one))
        if _is_mutable(one):
            yield step, one
        if not isinstance(one, Process):
            waiting += _parts(step, one)


def _parts(path: str, value: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(value, KeyedState):
        return
    if isinstance(value, Mapping):
        yield from ((f"{path}[{key!r}]", one) for key, one in value.items())
    elif isinstance(value, list | tuple | set | frozenset | deque):
        yield from ((f"{path}[{place}]", one) for place, one in enumerate(value))
    elif isinstance(value, msgspec.Struct):
        yield from ((f"{path}.{name}", getattr(value, name, None)) for name in value.__struct_fields__)
    elif hasattr(value, "__dict__"):
        yield from ((f"{path}.{name}", one) for name, one in vars(value).items())


def _is_mutable(value: Any) -> bool:
    if isinstance(value, _CONTAINERS):
        return True
    if isinstance(value, (*_LEAVES, property, staticmethod, classmethod)):
        return False
    if isinstance(value, msgspec.Struct):
        return not value.__struct_config__.frozen
    parameters = getattr(type(value), "__dataclass_params__", None)
    if parameters is not None:
        return not parameters.frozen
    return hasattr(value, "__dict__")
