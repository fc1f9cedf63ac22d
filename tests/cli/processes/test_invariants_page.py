"""The example of docs/invariants.md works as written."""

import re

import pytest
from tests.cli.command_line import REPOSITORY, run

from strobe import GlobalState
from strobe.cli.arguments.systems import open_system

PAGE = (REPOSITORY / "docs" / "invariants.md").read_text("utf-8")
SYSTEM, COMMANDS = (
    re.search(rf"^```{language}\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE)[1] for language in ("python", "sh")
)
VIOLATION = re.search(r"^```\n(invariants: .*)\n```$", PAGE, re.MULTILINE)[1]


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "ring.py").write_text(SYSTEM)


def test_G1_its_commands_find_the_broken_ring_and_pass_the_sound_one():
    sound, broken, _ = (line.split()[1:] for line in COMMANDS.splitlines())
    result = run(*sound)
    assert (result.code, ", invariants, " in result.out) == (0, True)
    result = run(*broken)
    assert result.code == 1
    assert VIOLATION in " ".join(result.out.split())


def test_its_function_can_be_called_without_a_system():
    names = {}
    exec(SYSTEM, names)
    assert names["one_token"](GlobalState({"a": names["Turn"](True)})) is True


def test_its_invariants_are_those_of_the_table():
    with open_system("ring.py:ring") as source:
        assert [one.name for one in source.load().invariants] == [
            "one_token",
            'a.entered >= b.entered and in_flight("a->b") <= 1',
        ]
