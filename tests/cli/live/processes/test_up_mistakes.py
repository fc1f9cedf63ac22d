"""`strobe up` of a system with a mistake: refused before it starts, or exit code 1 if no snapshot completed."""

import threading

import pytest
from tests.cli.command_line import BANK, run, run_apart

from strobe import Process, System, watchdog
from strobe.cli.arguments import start_check
from strobe.cli.live.up import refuse_old_output
from strobe.cli.shell import long_calls
from strobe.runtime.connectors.file_sink import FileSink

SYSTEM = """
import msgspec
from strobe import Process, System

class Account(msgspec.Struct):
    history: list = []

class Branch(Process):
    def __init__(self): self.account = Account()
    def capture(self): return self.account
    def restore(self, state): self.account = state

"""
LATE = """
class Late(Branch):
    def start(self, ctx): self.account.history.append(object())
mine = System({"a": Late()}, [])
"""


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("class Bad(Branch):\n    restore = Process.restore\n", "Bad has capture() but no restore(): a rollback could"),
        ("class Bad(Branch):\n    def restore(self, state): state.x\n", "AttributeError: 'Account' object has no attr"),
        ("class Bad(Branch):\n    async def restore(self, state): pass\n", "Bad.restore is async"),
        (
            "class Bad(Branch):\n    def capture(self): return Account(5)\n",
            "Expected `array`, got `int` - at `$.history`",
        ),
    ],
)
def test_E13_a_mistake_in_a_process_is_named_before_anything_is_started(tmp_path, monkeypatch, text, message):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.py").write_text(f'{SYSTEM}{text}mine = System({{"a": Bad()}}, [])\n')
    result = run("up", "mine.py:mine", "--store", "s")
    assert result.code in (1, 2)
    assert message in result.error
    assert not (tmp_path / "s").exists()


def test_a_run_in_which_no_snapshot_completes_ends_with_1_and_the_reason(tmp_path):
    (tmp_path / "mine.py").write_text(SYSTEM + LATE)
    result = run_apart(
        "up", "mine.py:mine", "--store", "s", "--create", "--interval", "0.05", "--for", "0.5", cwd=tmp_path
    )
    assert result.code == 1
    assert "0 complete snapshots in the store" in result.out
    last = result.err.splitlines()[-1]
    assert "completed (" in last
    assert "was aborted: a: its state cannot be captured" in last
    assert "cannot be encoded: Account.history[0]: object" in last


def test_a_function_that_does_not_return_when_it_is_checked_is_named(monkeypatch):
    """E13: a function of the user's may never return."""
    monkeypatch.setattr(watchdog, "BLOCKED_S", 0.01)
    reported, notes = threading.Event(), []

    class Waiting(Process):
        def capture(self):
            assert reported.wait(20)
            return b""

        def restore(self, state):
            pass

    def note(text):
        if "Waiting.capture() at tests/cli/live/processes/test_up_mistakes.py:" in text:  # else this test's own call
            notes.append(text)
            reported.set()

    monkeypatch.setattr(long_calls, "note", note)
    start_check.check_all(System({"a": Waiting()}, []))
    assert notes[0].endswith("; Ctrl-C ends the command")


OUTPUT = """
from strobe.runtime import FileSink
class Till(Branch):
    def start(self, ctx): ctx.emit("out", 1)
mine = System({"a": Till()}, [], sinks={"out": FileSink("out.jsonl", process="a")})
"""


def test_R2_output_of_another_store_is_refused_before_anything_is_started(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.py").write_text(SYSTEM + OUTPUT)
    (tmp_path / "out.jsonl").write_text("1\n" * 600)
    result = run("up", "mine.py:mine", "--store", "s", "--create")
    assert result.code == 2
    assert "sink 'out' has released 1,200 bytes into out.jsonl already, and the store s has no snapshot" in result.error
    assert "move out.jsonl and out.jsonl.staged away to begin again" in result.error
    assert not (tmp_path / "s").exists()


def test_R2_output_that_follows_from_the_store_is_accepted(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "out.jsonl").write_text("1\n")
    system = System({"a": Plain()}, [], sinks={"out": FileSink("out.jsonl", process="a")})
    assert run("simulate", BANK, "--snapshots", "1", "--faults", "none", "--store", "s").code == 0
    refuse_old_output(system, "s")
    (tmp_path / "out.jsonl").unlink()
    refuse_old_output(system, "absent")


class Plain(Process):
    def capture(self):
        return b""

    def restore(self, state):
        pass
