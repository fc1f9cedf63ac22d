"""E13: random systems with one mistake are refused with an error that names it; the same without it are accepted."""

import re
from zlib import crc32

import pytest
from tests.cli.command_line import run, run_apart
from tests.cli.mistaken_systems import MISTAKES, Made, make

from strobe.cli.arguments.systems import open_system
from strobe.self_check import check_system

EARLY = [name for name, mistake in MISTAKES.items() if not mistake.late]
SEEDS = range(3)


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    """Work in an empty directory."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def seed_of(name: str, number: int) -> int:
    return crc32(f"{name} {number}".encode())


def names_it(made: Made, message: str, error: str) -> bool:
    pattern = message.replace("KIND", made.kind).replace("PLACE", rf"[^ ]*{re.escape(made.place)}")
    return re.search(pattern, error) is not None


def write(here, made: Made) -> None:
    (here / "mine.py").write_text(made.text)


@pytest.mark.parametrize("number", SEEDS)
@pytest.mark.parametrize("name", MISTAKES)
def test_E13_simulate_names_the_mistake(here, name, number):
    mistake, made = MISTAKES[name], make(seed_of(name, number), MISTAKES[name])
    write(here, made)
    result = run("simulate", "mine.py:mine", "--snapshots", "5", "--seed", str(number))
    assert result.code == mistake.code, (result, made.text)
    assert names_it(made, mistake.message, " ".join((result.err + result.out).split())), (result, made.text)


@pytest.mark.parametrize("name", EARLY)
def test_E13_up_names_the_mistake_before_anything_is_started(here, name):
    mistake, made = MISTAKES[name], make(seed_of(name, 9), MISTAKES[name])
    write(here, made)
    result = run("up", "mine.py:mine", "--store", "s", "--create")
    assert result.code == mistake.code, (result, made.text)
    assert names_it(made, mistake.message, result.error), (result, made.text)
    assert not (here / "s").exists()


@pytest.mark.parametrize("number", range(12))
def test_E13_the_same_systems_without_a_mistake_are_accepted(here, number):
    write(here, make(seed_of(list(MISTAKES)[number % len(MISTAKES)], number)))
    result = run("simulate", "mine.py:mine", "--snapshots", "5", "--seed", str(number))
    assert (result.code, result.err) == (0, ""), result


@pytest.mark.parametrize("number", range(100))
def test_E13_no_correct_system_is_refused_by_the_check(here, number):
    write(here, make(number))
    with open_system("mine.py:mine") as source:
        found = check_system(source.load())
    assert found.mistakes == ()
    assert found.unchecked == ()


@pytest.mark.parametrize("name", ["a handler raises", "a message that is not declared"])
def test_E13_a_mistake_that_shows_only_at_run_time_is_named(here, name):
    """Live, in separate processes: it is found when it happens, and again after each rollback."""
    made = make(seed_of(name, 4), MISTAKES[name])
    write(here, made)
    result = run_apart("up", "mine.py:mine", "--store", "s", "--create", "--interval", "0.2", cwd=here, timeout_s=60)
    assert result.code == 1, result
    assert names_it(made, MISTAKES[name].message, " ".join(result.err.split())), (result, made.text)


def test_E13_a_correct_system_runs_live_without_any_error(here):
    write(here, make(seed_of("correct", 4)))
    result = run_apart(
        "up", "mine.py:mine", "--store", "s", "--create", "--interval", "0.2", "--for", "1", cwd=here, timeout_s=60
    )
    assert result.code == 0, result
    assert "mistake" not in result.err
    assert "error" not in result.err


@pytest.mark.parametrize("number", SEEDS)
def test_E13_a_renamed_field_is_named_by_the_trial_restore(here, number):
    as_struct = MISTAKES["capture of another type"]._replace(change=lambda methods, kind: None)
    made = make(seed_of("renamed", number), as_struct)
    write(here, made)
    simulated = ("simulate", "mine.py:mine", "--snapshots", "2", "--faults", "none", "--store", "s")
    verified = ("snapshot", "verify", "latest", "--store", "s", "--level", "restore", "--system", "mine.py:mine")
    assert run(*simulated).code == 0
    assert run(*verified).code == 0
    write(here, made._replace(text=made.text.replace("balance: int = 0", "funds: int = 0")))
    result = run(*verified)
    assert result.code == 1
    assert "Ledger.balance" in result.out + result.err
