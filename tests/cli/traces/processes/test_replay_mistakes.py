"""`strobe trace replay` of a program with a mistake: reported as the user's, with process, file and line."""

import pytest
from tests.cli.command_line import REPOSITORY, run

MISTAKES = {
    "receive": ("def receive(self, ctx, channel, message): message.nothing", "failed in event"),
    "capture": ("def capture(self): return self.nothing", "failed in capture(): AttributeError"),
    "timer": ("def timer(self, ctx, name): ctx.send('nowhere', 1); ctx.nothing", "failed in event"),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_found_in_a_replay_is_not_a_bug_in_strobe(tmp_path, monkeypatch, name):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "bank.py").write_text((REPOSITORY / "examples" / "bank.py").read_text())
    text, expected = MISTAKES[name]
    (tmp_path / "mine.py").write_text(
        f"from bank import Branch, bank as mine\nclass Bad(Branch):\n    {text}\n"
        "for process in mine.processes.values(): process.__class__ = Bad\n"
    )
    options = ("--snapshots", "2", "--store", "s", "--trace", "run.jsonl", "--trace-level", "full")
    assert run("simulate", "bank.py:bank", *options).code == 0
    result = run("trace", "replay", "run.jsonl", "--system", "mine.py:mine", "--store", "s")
    assert result.code == 1
    assert expected in result.error
    assert "(mine.py:3, in " in result.error
