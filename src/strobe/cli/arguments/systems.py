"""Loads the system that a command line names: `file.py:name`, `module:name` or `system.toml`.

A run changes the processes of its system, so each run needs its own system: the user's code is run again for each. If
that code fails, the error says how to repeat the run.
"""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

from strobe.errors import UsageError, UserCodeFailed
from strobe.process import System
from strobe.protocol.process.first_view import first_view
from strobe.runtime.connectors.system_file import read_system_file
from strobe.user_code import RAISED, is_raised_by_strobe, is_users, loading, raise_failure

_FORMS = "write it as file.py:name, module:name or system.toml"


class SystemSource:
    """The source of a system. `protocol` overrides the system's own."""

    def __init__(self, spec: str, protocol: str | None = None) -> None:
        self.spec = spec
        self.protocol = protocol
        self._modules: set[str] = set()

    def load(self) -> System:
        """Return a new system, checked; UsageError describes what is wrong with it, and where."""
        self.forget_modules()
        known = set(sys.modules)
        try:
            system = self._read()
        finally:
            self._modules = {name for name in set(sys.modules) - known if is_users(_file_of(name))}
        if self.protocol is not None:
            system.protocol = self.protocol
        self._check(system)
        return system

    def forget_modules(self) -> None:
        """Drop the user's modules, so that the next import runs them again."""
        for name in self._modules:
            sys.modules.pop(name, None)

    def _read(self) -> System:
        if self.spec.endswith(".toml"):
            return read_system_file(Path(self.spec))
        place, colon, name = self.spec.rpartition(":")
        if not colon:
            raise UsageError(_incomplete(self.spec))
        if not place or not name:
            raise UsageError(f"{self.spec!r} is not a system; {_FORMS}")
        return _pick(_run_file(Path(place)) if _is_file(place) else _run_module(place), place, name)

    def _check(self, system: System) -> None:
        try:
            if not system.processes:
                raise UsageError("the system has no processes; give it at least one")
            first_view(system)
        except UsageError as error:
            raise UsageError(f"{self.spec}: {error}") from error


@contextmanager
def open_system(spec: str, protocol: str | None = None) -> Iterator[SystemSource]:
    """Open the system `spec`; its modules are importable within the `with` block only."""
    path = list(sys.path)
    place = spec if spec.endswith(".toml") else spec.rpartition(":")[0]
    sys.path.insert(0, str(Path(place).absolute().parent) if _is_file(place) else str(Path.cwd()))
    source = SystemSource(spec, protocol)
    try:
        yield source
    finally:
        sys.path[:] = path
        source.forget_modules()


@contextmanager
def running(command: str | None = None) -> Iterator[None]:
    """Add to a UserCodeFailed what to do now. A failure of the system's code outside any known call becomes one too."""
    try:
        try:
            yield
        except RAISED as error:
            if is_raised_by_strobe(error):
                raise
            raise_failure("the system's own code failed", error)
    except UserCodeFailed as error:
        again = f"run it again:\n    {command}" if command is not None else "try again"
        raise UserCodeFailed(f"{error}; correct it, then {again}") from error


def _is_file(place: str) -> bool:
    return place.endswith((".py", ".toml")) or "/" in place or Path(place).is_file()


def _run_file(path: Path) -> ModuleType:
    """Run the Python file `path` as a separate module."""
    try:
        source = path.read_bytes()
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}; {_FORMS}") from error
    module = ModuleType(f"strobe_system_{path.stem}")
    module.__file__ = str(path.absolute())
    # Types are looked up by the name of their module, for example by msgspec.
    sys.modules[module.__name__] = module
    with loading(f"cannot run {path}"):
        exec(compile(source, module.__file__, "exec"), module.__dict__)
    return module


def _run_module(name: str) -> ModuleType:
    if not all(part.isidentifier() for part in name.split(".")):
        raise UsageError(f"{name!r} is neither a Python file nor the name of a module; {_FORMS}")
    sys.modules.pop(name, None)
    with loading(f"the module {name!r} cannot be imported"):
        return import_module(name)


def _pick(module: ModuleType, place: str, name: str) -> System:
    found = getattr(module, name, None)
    if isinstance(found, System):
        return found
    problem = f"is of type {type(found).__name__}, not a strobe.System" if hasattr(module, name) else "does not exist"
    systems = [f"{place}:{known}" for known, value in vars(module).items() if isinstance(value, System)]
    instead = (
        f"choose: {', '.join(systems)}" if systems else "make one: name = strobe.System(processes=..., channels=...)"
    )
    raise UsageError(f"{name!r} in {place} {problem}; {instead}")


def _incomplete(spec: str) -> str:
    if Path(spec).is_file() or spec.endswith(".py"):
        return f"{spec!r} does not name a system in the file: write {spec}:name"
    return f"{spec!r} is not a system; {_FORMS}"


def _file_of(module: str) -> str | None:
    file: Any = getattr(sys.modules.get(module), "__file__", None)
    return file if isinstance(file, str) else None
