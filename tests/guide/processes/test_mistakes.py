"""docs/mistakes.md: each mistake is really answered with the message that the page shows (E13)."""

import re

import pytest
from tests.cli.command_line import run
from tests.cli.mistaken_systems import MISTAKES
from tests.guide.mistakes import base, read, with_mistake
from tests.guide.pages import Reader, missing_line, steps

SHOWN = read()


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "bank.py").write_text(base())
    return tmp_path


def one_line(text: str) -> str:
    return " ".join(text.split())


def test_the_bank_of_the_page_has_no_mistake():
    result = run("simulate", "bank.py:bank", "--snapshots", "5")
    assert (result.code, result.err) == (0, "")


@pytest.mark.parametrize("mistake", [one for one in SHOWN if one.code], ids=lambda one: one.title)
def test_E13_a_mistake_of_the_page_has_the_message_that_it_shows(here, mistake):
    (here / "bank.py").write_text(with_mistake(base(), mistake.code))
    result = run("simulate", "bank.py:bank", "--snapshots", "5")
    assert result.code in (1, 2)
    printed = one_line(result.err + result.out)
    message = one_line(mistake.message)
    assert message.startswith("error: ")
    # What follows tells how to run it again.
    assert missing_line([message], printed[: len(message)]) is None, printed


@pytest.mark.parametrize("mistake", [one for one in SHOWN if one.commands], ids=lambda one: one.title)
def test_a_mistaken_command_of_the_page_prints_what_it_shows(here, mistake):
    reader = Reader(here)
    for step in steps(mistake.commands):
        reader.do(step)


@pytest.mark.parametrize("name", MISTAKES)
def test_E13_every_mistake_of_the_catalogue_is_on_the_page(name):
    place = r"\\S*bank.py:\\d+"
    pattern = MISTAKES[name].message.replace("KIND", "Branch").replace("PLACE", place).replace("\\\\", "\\")
    # The catalogue and the page have other names for files, processes and the attribute with the state.
    pattern = pattern.replace(r"Branch\.state is", r"Branch\.ledger is").replace(r"self\.state in", r"self\.ledger in")
    pattern = pattern.replace(r"mine\.py", r"bank\.py").replace(r"p\d", r"\w+")
    messages = [one_line(one.message) for one in SHOWN]
    assert any(re.search(pattern, message) for message in messages), pattern
