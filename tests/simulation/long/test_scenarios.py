"""Golden scripts: command lines and all of their output, in *.txt beside this file.

Each command follows `$`. Then come a line of dashes and the output: stdout, stderr, and the exit code if it is not 0.
The commands of a file run in one new directory, which contains bank.py and leaky_bank.py. To regenerate the files
after an intended change:

    STROBE_REGENERATE=1 .venv/bin/python -m pytest tests/simulation/long/test_scenarios.py
"""

import os
import re
import shlex
import shutil
from pathlib import Path

import pytest
from tests.cli.command_line import REPOSITORY, run
from tests.cli.conftest import installation_on_the_path  # noqa: F401 -- a fixture, in use by being here

SCRIPTS = sorted(Path(__file__).parent.glob("*.txt"))
DASHES = "----"


def commands_of(script):
    """Return the command lines of a script."""
    return [line.removeprefix("$ ") for line in script.read_text().splitlines() if line.startswith("$ ")]


def play(commands):
    """Run the commands and return the script as it should read."""
    return "\n".join(f"$ {command}\n{DASHES}\n{output_of(command)}" for command in commands)


def output_of(command):
    words = shlex.split(command)
    if words[0] == "sed":  # corrupts a file that an earlier command has written
        file = Path(words[-1])
        _, old, new, _ = words[1].split("/")
        file.write_text(file.read_text().replace(old, new))
        return ""
    result = run(*words[1:])
    text = result.out + result.err + (f"exit {result.code}\n" if result.code else "")
    return re.sub(r"[\d,]+ per second", "N per second", text).replace(str(Path.cwd()), "/here")


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.stem)
def test_a_script_still_prints_the_same(script, tmp_path, monkeypatch):
    for file in (REPOSITORY / "examples" / "bank.py", Path(__file__).parent / "leaky_bank.py"):
        shutil.copy(file, tmp_path)
    monkeypatch.chdir(tmp_path)
    played = play(commands_of(script))
    if os.environ.get("STROBE_REGENERATE"):
        script.write_text(played)
    assert played == script.read_text()
