"""The check of a system's processes before a command runs them (E13)."""

from strobe.cli.shell.long_calls import long_calls_noted
from strobe.cli.shell.output import note
from strobe.process import System
from strobe.runtime.connectors.system_file import ProgramWithOwnLoop
from strobe.self_check import Checked, check_process, check_system


def programs_of(system: System) -> list[str]:
    """Return the processes that are programs with their own loop. They are checked when they connect."""
    return [name for name, process in system.processes.items() if isinstance(process, ProgramWithOwnLoop)]


def check_all(system: System) -> None:
    """Check every process of `system`; raise UserCodeFailed that names every mistake."""
    with long_calls_noted():
        checked = check_system(system, programs_of(system))
    _report(checked)


def check_one(system: System, name: str) -> None:
    """Check one process of `system`, as `check_all` does."""
    with long_calls_noted():
        checked = check_process(system, name)
    _report(checked)


def _report(checked: Checked) -> None:
    checked.require_sound()
    for what in checked.unchecked:
        note(f"not checked: {what}")
