"""The check of a system's processes before a command runs them (E13)."""

from collections.abc import Iterator
from contextlib import contextmanager
from threading import Timer

from strobe.cli.shell.output import note
from strobe.process import System
from strobe.runtime.connectors.system_file import ProgramWithOwnLoop
from strobe.self_check import Checked, check_process, check_system

SLOW_S = 5.0


def programs_of(system: System) -> list[str]:
    """Return the processes that are programs with their own loop. They are checked when they connect."""
    return [name for name, process in system.processes.items() if isinstance(process, ProgramWithOwnLoop)]


def check_all(system: System) -> None:
    """Check every process of `system`; raise UserCodeFailed that names every mistake."""
    with _reported_if_slow():
        checked = check_system(system, programs_of(system))
    _report(checked)


def check_one(system: System, name: str) -> None:
    """Check one process of `system`, as `check_all` does."""
    with _reported_if_slow():
        checked = check_process(system, name)
    _report(checked)


def _report(checked: Checked) -> None:
    checked.require_sound()
    for what in checked.unchecked:
        note(f"not checked: {what}")


@contextmanager
def _reported_if_slow() -> Iterator[None]:
    """Print a note if the check is slow: it runs the user's functions, and one of them may never return."""
    text = "still checking the system: capture(), restore() or `conserved` has been running for"
    timer = Timer(SLOW_S, lambda: note(f"{text} {SLOW_S:g} s; Ctrl-C stops it"))
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
