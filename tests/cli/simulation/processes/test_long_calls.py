"""A call of the user's code that does not return is named while a system is simulated."""

from tests.cli import waiting_system
from tests.cli.command_line import run
from tests.cli.reported import reported

from strobe import watchdog
from strobe.cli.shell.output import ProgressLine


def test_a_handler_that_does_not_return_is_named_in_a_simulation(monkeypatch):
    """E13: with its process, the line at which it is, its stack, and its end."""
    note = ProgressLine.note

    def noting(self, text):
        note(self, text)
        reported.set()

    monkeypatch.setattr(watchdog, "BLOCKED_S", 0.01)
    monkeypatch.setattr(ProgressLine, "note", noting)
    words = ("--snapshots", "1", "--faults", "none")
    result = run("simulate", "tests.cli.waiting_system:waits", *words)
    assert result.code == 0, result
    place = waiting_system.Waiting.timer.__code__.co_firstlineno + 1
    begun, *stack = result.err.splitlines()
    first = next(iter(waiting_system.waits.processes))
    assert begun.startswith(f"Waiting.timer() of {first} at tests/cli/waiting_system.py:{place} has been running for ")
    assert begun.endswith(" s; Ctrl-C ends the command")
    assert any("assert reported.wait" in line for line in stack)
    assert run("simulate", "tests.cli.waiting_system:waits", *words).err == ""
