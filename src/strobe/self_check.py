"""Checks the processes of a system before anything runs (E13).

Each process is captured, encoded, decoded, restored into another copy, captured again and compared. So mistakes that
would otherwise show at the first snapshot or crash are reported at the start, with file and line.

The process that will run is not touched: the check uses copies of it (`copy.deepcopy`), as does a rollback to before
the first snapshot. A process that cannot be copied, because it holds a socket or a lock, is only captured; its
`restore` is not tried, and that is reported. For a program with its own loop, only its captured state is checked, when
it connects.

At the start a process has only its first state, so a field that `restore` forgets may not show. `Restores` checks later
states in the same way; the simulator uses it on the snapshots that it takes.
"""

from collections.abc import Callable, Collection, Iterator
from copy import deepcopy
from typing import Any, TypeVar

import msgspec

from strobe.declarations import declare
from strobe.errors import UserCodeFailed
from strobe.handlers import location
from strobe.process import Process, System, is_default
from strobe.protocol import LocalState, Snapshot
from strobe.shared_state import shared_state
from strobe.storage.content.state_codec import captured_state, decode_captured
from strobe.storage.inspection.round_trip import captured_again, round_trip
from strobe.user_code import RAISED, explain, is_failure, place_of_code

Result = TypeVar("Result")

MISTAKES_MAX = 5
"""Maximum number of different mistakes in one report."""
_NAMES_MAX = 3


class Mistake(msgspec.Struct, frozen=True):
    """A mistake in `process`, or in the system itself if `process` is empty."""

    process: str
    problem: str


class Checked(msgspec.Struct, frozen=True):
    """The result of a check: the mistakes found, and the parts that could not be checked."""

    mistakes: tuple[Mistake, ...] = ()
    unchecked: tuple[str, ...] = ()

    def require_sound(self) -> None:
        """Raise UserCodeFailed if there is a mistake."""
        if not self.mistakes:
            return
        # Several processes of one class have the same mistakes.
        by_problem: dict[str, list[str]] = {}
        for mistake in self.mistakes:
            by_problem.setdefault(mistake.problem, []).append(mistake.process)
        lines = [_describe(problem, processes) for problem, processes in by_problem.items()]
        more = [f"and {len(lines) - MISTAKES_MAX} more"] if len(lines) > MISTAKES_MAX else []
        raise UserCodeFailed("\n".join(lines[:MISTAKES_MAX] + more))


class _Found(Exception):
    """Carries one mistake to the function that collects them."""


def check_system(system: System, leave_out: Collection[str] = ()) -> Checked:
    """Check every process of `system`, except those in `leave_out`, and what is declared of all of them."""
    mistakes = _shared(system, leave_out)
    unchecked: list[str] = []
    states: dict[str, Any] = {}
    for name, process in system.processes.items():
        if name not in leave_out:
            found = _ProcessCheck(name, process, system)
            mistakes += found.mistakes
            unchecked += found.unchecked
            if found.state is not None:
                states[name] = found.state
    mistakes += _mistakes_of_system(system, states)
    return Checked(tuple(mistakes), tuple(unchecked))


def _mistakes_of_system(system: System, states: dict[str, Any]) -> Iterator[Mistake]:
    """Yield the mistakes in `conserved` and in the invariants, called with the initial states.

    Functions need the states of all processes. Whether an invariant holds is not asked: `start` has not run.
    """
    initial = system.initial_state(states)
    checks: list[tuple[str, Callable[[], Any]]] = [
        ("", lambda one=one: one.check(states))  # type: ignore[misc]
        for one in system.invariants
    ]
    if len(states) == len(system.processes):
        if system.conserved is not None:
            what = f"the function `conserved` of the system{_at(system, 'conserved')}"
            checks.append((what, lambda: system.conserved_value(states, [])))
        checks += [
            (f"the invariant {one.name}", lambda one=one: one.violation(initial))  # type: ignore[misc]
            for one in system.invariants
        ]
    for what, check in checks:
        try:
            _attempt(what, check)
        except _Found as error:
            yield Mistake("", str(error))


def check_process(system: System, name: str) -> Checked:
    """Check one process of `system`."""
    found = _ProcessCheck(name, system.processes[name], system)
    shared = [one for one in _shared(system, ()) if one.process == name]
    return Checked((*shared, *found.mistakes), tuple(found.unchecked))


def decoded_again(name: str, capture: Callable[[], Any]) -> tuple[LocalState, Any]:
    """Return what `capture` returns as a snapshot stores it, and decoded again; raise UserCodeFailed if that fails."""
    try:
        return _encoded(name, _attempt("it fails", capture))
    except _Found as error:
        raise UserCodeFailed(_describe(f"`capture`{location(capture)}: {error}", [name])) from error


class Restores:
    """Tries to restore the states of snapshots into copies of the processes. These must not have run yet."""

    def __init__(self, system: System) -> None:
        copies = {name: _copy(process)[0] for name, process in system.processes.items()}
        self._templates = {name: twin for name, twin in copies.items() if twin is not None}
        self.left_out = [name for name, twin in copies.items() if twin is None]
        """The processes that cannot be copied."""

    def check(self, snapshot: Snapshot) -> None:
        """Raise UserCodeFailed if a process cannot restore its state from `snapshot`."""
        mistakes = tuple(self._mistakes(snapshot))
        Checked(mistakes).require_sound()

    def _mistakes(self, snapshot: Snapshot) -> Iterator[Mistake]:
        for name, fragment in snapshot.fragments.items():
            if name in self._templates and fragment.state is not None:
                twin, local = deepcopy(self._templates[name]), fragment.state
                problem = round_trip(name, twin, local, decode_captured(twin.capture(), local))
                if problem is not None:
                    what = f"{type(twin).__name__}.restore{_at(twin, 'restore')}, after event {local.position}"
                    yield Mistake(name, f"{what}: {problem}")


class _ProcessCheck:
    """The check of one process, step by step, up to the first mistake that prevents further checks."""

    def __init__(self, name: str, process: Process, system: System) -> None:
        self.mistakes: list[Mistake] = []
        self.unchecked: list[str] = []
        self.state: Any = None
        self._name, self._kind = name, type(process).__name__
        has_restore = not is_default(process, "restore")
        if not has_restore and not is_default(process, "capture"):
            problem = f"{self._kind} has capture() but no restore(): a rollback could not put its state back"
            self._add(f"{problem}{_at(process, 'capture')}")
        try:
            self._check(process, system, has_restore)
        except _Found as error:
            self._add(str(error))

    def _add(self, problem: str) -> None:
        self.mistakes.append(Mistake(self._name, problem))

    def _check(self, process: Process, system: System, has_restore: bool) -> None:
        if is_default(process, "capture"):
            raise _Found(f"{self._kind} has no capture(): return its state, or b'' if it has none")
        twin, why = _copy(process)
        again = _copy(process)[0] if twin is not None else None
        if twin is None or again is None:
            self.unchecked.append(f"{self._kind}.restore of process {self._name!r} (it cannot be copied: {why})")
        original = twin if twin is not None else process
        captured = _attempt(f"{self._kind}.capture fails, called before start()", original.capture)
        try:
            local, self.state = _encoded(self._name, captured)
        except _Found as error:
            raise _Found(f"{self._kind}.capture{_at(original, 'capture')}: {error}") from error
        if twin is not None:
            changed = _attempt("a second capture()", lambda: captured_again(self._name, twin, captured, local.data))
            if changed is not None:
                raise _Found(f"{self._kind}.capture{_at(twin, 'capture')}: {changed}")
        _attempt(f"what {self._kind} declares", lambda: declare(self._name, original, system.message_rules))
        if again is not None and has_restore:
            problem = round_trip(self._name, again, local, _encoded(self._name, captured)[1])
            if problem is not None:
                raise _Found(f"{self._kind}.restore{_at(again, 'restore')}: {problem}")


def _shared(system: System, leave_out: Collection[str]) -> list[Mistake]:
    return [Mistake(name, one.problem) for one in shared_state(system, leave_out) for name in one.processes]


def _encoded(name: str, captured: Any) -> tuple[LocalState, Any]:
    """Return a captured state as a snapshot stores it, and decoded again."""
    kind = type(captured).__name__
    local = _attempt("", lambda: captured_state(name, captured))
    problem = f"the {kind} that capture() returns is not what its type says: it is encoded, and cannot be decoded again"
    return local, _attempt(problem, lambda: decode_captured(captured, local))


def _attempt(what: str, action: Callable[[], Result]) -> Result:
    """Call `action`, which runs the user's code; raise _Found if it fails."""
    try:
        return action()
    except RAISED as error:
        if not is_failure(error):
            raise
        text = explain(error)
        raise _Found(f"{what}: {text}" if what and not text.startswith(what) else text) from error


def _copy(process: Process) -> tuple[Process | None, str]:
    """Return a copy of `process`, or None and the reason if it cannot be copied."""
    try:
        return deepcopy(process), ""
    except RAISED as error:  # raised by the user's own objects
        if not is_failure(error):
            raise
        return None, explain(error)


def _describe(problem: str, processes: list[str]) -> str:
    """Return the text of a mistake, with the processes that have it."""
    names = ", ".join(repr(name) for name in processes[:_NAMES_MAX] if name)
    more = f" and {len(processes) - _NAMES_MAX} more" if len(processes) > _NAMES_MAX else ""
    if not names:
        return problem
    return f"process {names}: {problem}" if len(processes) == 1 else f"processes {names}{more}: {problem}"


def _at(owner: Process | System, function: str) -> str:
    """Return the source location of a function of `owner`, in brackets; empty if it is not known."""
    code = getattr(getattr(owner, function), "__code__", None)
    return f" ({place_of_code(code)})" if code is not None else ""
