"""Program names for printed commands, so that they work when pasted into the user's shell."""

import shlex
import shutil
import sys
from pathlib import Path


def program(name: str) -> str:
    """Return how to call the program `name` of this installation from the user's shell."""
    here = Path(sys.executable).parent / name
    found = shutil.which(name)
    if found is not None and Path(found).resolve() == here.resolve():
        return name
    return _from_here(here)


def python() -> str:
    """Return how to call the current interpreter."""
    return _from_here(Path(sys.executable))


def _from_here(path: Path) -> str:
    short = path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path
    return shlex.quote(str(short))
