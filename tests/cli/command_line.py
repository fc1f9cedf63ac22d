"""Helpers that run the command line, in this process or in a separate one, and create stores for it."""

from __future__ import annotations

import contextlib
import io
import json
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

from strobe.cli import main

REPOSITORY = Path(__file__).parents[2]
BANK = f"{REPOSITORY / 'examples' / 'bank.py'}:bank"


class Result(NamedTuple):
    """Output and exit code of a command."""

    code: int
    out: str
    err: str

    @property
    def document(self) -> Any:
        """The one JSON document on stdout."""
        return json.loads(self.out)

    @property
    def error(self) -> str:
        """The error message, joined into one line. Fails if stderr does not begin with it or has a traceback."""
        assert self.err.startswith("error: "), self.err
        assert "Traceback" not in self.err
        return " ".join(self.err.split())


def run(*words: str | Path) -> Result:
    """Run a command in this process."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = main([str(word) for word in words])
    return Result(code, out.getvalue(), err.getvalue())


def run_apart(*words: str | Path, cwd: Path = REPOSITORY, timeout_s: float = 180.0) -> Result:
    """Run a command in a separate process, which is killed after a timeout."""
    command = [sys.executable, "-m", "strobe", *map(str, words)]
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, check=False, timeout=timeout_s)
    return Result(done.returncode, done.stdout, done.stderr)


def simulated_store(directory: Path, *options: str) -> Path:
    """Create a store with the snapshots of a short simulation."""
    store = directory / "store"
    result = run("simulate", BANK, "--snapshots", "3", "--faults", "none", "--store", store, *options)
    assert result.code == 0, result
    return store


def refused(result: Result, *parts: str) -> None:
    """Assert that the input was refused, with an error message that contains these parts."""
    assert result.code == 2, result
    assert result.out == ""
    for part in parts:
        assert part in result.error
