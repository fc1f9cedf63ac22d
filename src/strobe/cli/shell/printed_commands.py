"""How to call this installation's programs from where the user is: for commands that are printed to be pasted."""

import shlex
import shutil
import sys
from pathlib import Path


def program(name: str) -> str:
    """Return how to call the program `name` of this installation from here."""
    here = Path(sys.executable).parent / name
    found = shutil.which(name)
    if found is not None and Path(found).resolve() == here.resolve():
        return name
    return _from_here(here)


def python() -> str:
    """Return how to call the interpreter that runs this."""
    return _from_here(Path(sys.executable))


def _from_here(path: Path) -> str:
    short = path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path
    return shlex.quote(str(short))
