"""Finds the system that a test names, and how a command line names it."""

import sys
from copy import copy, deepcopy
from pathlib import Path
from types import ModuleType

from strobe.errors import UsageError
from strobe.process import System
from strobe.user_code import RAISED, explain, is_failure


def spec_of(system: System | str, near: Path) -> str | None:
    """Return what names `system` on a command line in the current directory; None if nothing does.

    The file of a text is searched in the directory `near` first, then in the current directory.
    """
    if isinstance(system, System):
        return _variable(system)
    place, colon, name = ("", "", system) if system.endswith(".toml") else system.rpartition(":")
    file = near / (place or name)
    return f"{_shown(file)}{colon}{name if place else ''}" if file.is_file() else system


def absolute(spec: str) -> str:
    """Return `spec` in a form that is valid in every directory."""
    place, colon, name = (spec, "", "") if spec.endswith(".toml") else spec.rpartition(":")
    return f"{Path(place).absolute()}{colon}{name}" if Path(place).is_file() else spec


def imported(spec: str) -> System | None:
    """Return the system that `spec` names, if the test has imported its module: then both use the same classes."""
    place, _, name = spec.rpartition(":")
    for module in _users():
        if name and (module.__name__ == place or _file_of(module) == Path(place).absolute()):
            found = getattr(module, name, None)
            return found if isinstance(found, System) else None
    return None


class Copies:
    """Makes copies of a system that has not run."""

    def __init__(self, system: System, protocol: str | None) -> None:
        self._system = system
        self._protocol = protocol

    def load(self) -> System:
        """Return a copy whose processes may run; UsageError if one cannot be copied."""
        made = copy(self._system)
        try:
            made.processes = deepcopy(self._system.processes)
        except RAISED as error:  # raised by the user's own objects
            if not is_failure(error):
                raise
            raise UsageError(
                f"a process of the system cannot be copied for each seed ({explain(error)}); "
                'name the system instead, as in "file.py:name": then its file is run for each seed'
            ) from error
        if self._protocol is not None:
            made.protocol = self._protocol
        return made


def _variable(system: System) -> str | None:
    """Return the name of the module variable that holds `system`; one of a test file only if there is no other."""
    found = [
        (_file_of(module).name.startswith("test_"), _place(module), name)
        for module in _users()
        for name, value in list(vars(module).items())
        if value is system
    ]
    if not found:
        return None
    _, place, name = min(found)
    return f"{place}:{name}"


def _place(module: ModuleType) -> str:
    """Return how a command line names `module`: by its file; in a package, whose imports may be relative, by its name.

    A package in a directory that is not searched for modules can only be named by its file.
    """
    file, depth = _file_of(module), module.__name__.count(".")
    if depth and file.stem != "__init__" and str(file.parents[depth]) in sys.path:
        return module.__name__
    return _shown(file)


def _users() -> list[ModuleType]:
    """Return the modules that have a Python file. Anything may be an entry of sys.modules."""
    entries: list[object] = list(sys.modules.values())
    modules = [entry for entry in entries if isinstance(entry, ModuleType)]
    return [module for module in modules if str(vars(module).get("__file__") or "").endswith(".py")]


def _file_of(module: ModuleType) -> Path:
    return Path(module.__file__ or "")


def _shown(file: Path) -> str:
    here = Path.cwd()
    return str(file.relative_to(here)) if file.is_relative_to(here) else str(file)
