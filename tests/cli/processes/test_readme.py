"""The README's examples and commands work as shown."""

import re
from importlib.metadata import metadata
from pathlib import Path
from random import Random
from unittest.mock import Mock

from tests.cli.command_line import run, run_apart

README = Path(__file__).parents[3] / "README.md"


def example():
    return re.search(r"```python\n(.*?)```", README.read_text(encoding="utf-8"), re.DOTALL)[1]


def test_the_bank_has_fifteen_lines():
    assert len(example().splitlines()) == 15


def test_a_branch_whose_only_peer_has_left_keeps_its_money():
    names = {}
    exec(compile(example(), "bank.py", "exec"), names)
    branch, ctx = names["Branch"](), Mock(outputs=(), random=Random(1))
    branch.timer(ctx, "pay")
    assert branch.account.amount == 100
    ctx.send.assert_not_called()
    ctx.set_timer.assert_called_once()


def test_its_commands_run_as_printed(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("bank.py").write_text(example(), encoding="utf-8")
    commands = re.findall(r"^\$ strobe (.*)$", README.read_text(encoding="utf-8"), re.MULTILINE)
    assert len(commands) == 4
    for command in commands:
        # A command that runs until it is stopped gets a time limit; it has children, so it runs in a separate process.
        result = (
            run_apart(*command.split(), "--for", "3", cwd=tmp_path)
            if command.startswith("up ")
            else run(*command.split())
        )
        assert result.code == 0, (command, result.err)


def test_its_first_command_is_pip_install_with_extras_that_exist():
    commands = re.search(r"## Start\n+```\n(.*?)```", README.read_text(encoding="utf-8"), re.DOTALL)[1].splitlines()
    extras = re.match(r"pip install 'strobe-snapshots\[([\w,]+)\]' ", commands[0])[1].split(",")
    assert set(extras) <= set(metadata("strobe-snapshots").get_all("Provides-Extra"))
    for command in commands[1:]:
        assert run(command.split()[1], "--help").code == 0, command


def test_every_command_it_names_exists():
    text = README.read_text(encoding="utf-8")
    for command in re.findall(r"^\| `strobe (\w+)", text, re.MULTILINE):
        assert run(command, "--help").code == 0, command
