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
from collections.abc import Collection, Iterable, Iterator, Mapping
from enum import Enum
from itertools import islice
from types import BuiltinFunctionType, FunctionType, MethodType, ModuleType
from typing import Any, NamedTuple

import msgspec

from strobe.keyed_state import KeyedState
from strobe.process import Process, System
from strobe.shared_state.attribute_uses import CLASS, MODULE, OBJECT, ClassUses, Root, Sources, Target

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
        self._sources = sources
        uses = ClassUses(kind, Process, sources)
        self._captured = uses.of("capture", "restore").mentioned
        self._started = uses.of("start").assigned
        self._uses = uses.whole()

    def problems(self, process: Process) -> Iterator[str]:
        """Yield each attribute of the class and each variable of the module that holds state."""
        kind = self._kind
        for name in sorted({root.name for root in self._captured if root.of == MODULE}):
            changed = (place for target, place in self._uses.changed.items() if target.root == Root(MODULE, name))
            for place in islice(changed, 1):
                yield (
                    f"{kind.__name__} keeps state in the variable {name!r} of its module, changed at {place}: all "
                    f"processes of a program share it, and no rollback restores it; keep it in self.{name}"
                )
        for name in sorted({root.name for root in self._captured if root.of != MODULE}):
            found = self._place(name, self._of_class(name), (name,), is_element=False)
            if found is not None and self._is_of_class(name, process):
                owner = next((one for one in kind.__mro__ if name in vars(one)), kind)
                yield (
                    f"{owner.__name__}.{name} is an attribute of the class, and is changed at {found}: all processes "
                    f"of the class share it, and no rollback restores it; set self.{name} in __init__"
                )

    def _of_class(self, name: str) -> Any:
        return inspect.getattr_static(self._kind, name, None)

    def _is_of_class(self, name: str, process: Process) -> bool:
        """Return whether an attribute that is changed belongs to the class, and not to `process`."""
        if name in _attributes(process) or name in self._started:
            return False
        is_assigned = any(target.root == Root(CLASS, name) for target in self._uses.changed)
        return is_assigned or _is_mutable(self._of_class(name))

    def objects(self, name: str, process: Process) -> Iterator[_Found]:
        """Yield each mutable object in the attributes of `process`."""
        for attribute, value in _attributes(process).items():
            is_state = bool({Root(OBJECT, attribute), Root(CLASS, attribute)} & self._captured)
            for part in _mutable_parts(attribute, value):
                place = self._place(attribute, value, part.path, part.is_element) if is_state else None
                yield _Found(part.value, name, f"{self._kind.__name__}.{part.text}", place)

    def _place(self, attribute: str, value: Any, path: tuple[str, ...], is_element: bool) -> str | None:
        """Return where the object at `path`, in the `value` of an attribute, is changed; None if it is not."""
        for target, place in self._changes(attribute, value):
            if target.changes(path, is_element):
                return place
        return None

    def _changes(self, attribute: str, value: Any) -> Iterator[tuple[Target, str]]:
        """Yield each change within an attribute, also by the methods of the objects there."""
        for target, place in self._uses.changed.items():
            if target.root.name == attribute and target.root.of != MODULE:
                yield target, place
        for (target, method), place in self._uses.called.items():
            if target.root.name == attribute and target.root.of != MODULE and not target.deep:
                called = _at(value, target.path)
                if called is not None and not isinstance(called, (*_CONTAINERS, *_LEAVES)):
                    uses = ClassUses(type(called), object, self._sources).of(method)
                    if uses.assigned:
                        yield target, place
                    for inner in uses.changed:
                        if inner.root.of == OBJECT:
                            yield Target(target.root, (*target.path, *inner.whole_path), inner.deep), place


def _at(value: Any, path: tuple[str, ...]) -> Any:
    for name in path:
        value = getattr(value, name, None)
    return value


class _Part(NamedTuple):
    """A mutable object: the attributes that lead to it, or, if it `is_element`, to something that contains it."""

    value: Any
    text: str
    path: tuple[str, ...]
    is_element: bool


def _mutable_parts(attribute: str, value: Any) -> Iterator[_Part]:
    """Yield each mutable object within the value of an attribute, outermost first."""
    waiting: deque[_Part] = deque([_Part(value, attribute, (attribute,), False)])
    seen: set[int] = set()
    while waiting and len(seen) < OBJECTS_MAX:
        part = waiting.popleft()
        one = part.value
        if isinstance(one, (*_LEAVES, BuiltinFunctionType)) or id(one) in seen:
            continue
        seen.add(id(one))
        if _is_mutable(one):
            yield part
        if not isinstance(one, Process | KeyedState):
            waiting += _parts(part)


def _parts(part: _Part) -> Iterator[_Part]:
    value, text, path, is_element = part
    if isinstance(value, Mapping):
        yield from (_Part(one, f"{text}[{key!r}]", path, True) for key, one in value.items())
    elif isinstance(value, list | tuple | set | frozenset | deque):
        yield from (_Part(one, f"{text}[{place}]", path, True) for place, one in enumerate(value))
    else:
        names: Iterable[str] = getattr(value, "__struct_fields__", getattr(value, "__dict__", ()))
        for name in names:
            inner = path if is_element else (*path, name)
            yield _Part(getattr(value, name, None), f"{text}.{name}", inner, is_element)


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
