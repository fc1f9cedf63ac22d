"""The promise that declared conditions are judged while the system runs."""

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from tests.cli.command_line import REPOSITORY, run_apart
from tests.cli.live.processes.started_up import interrupted
from tests.live.support.harness import running, wait_until

CLERKS = REPOSITORY / "tests" / "claims" / "stuck_clerks.py"
LEAKY = REPOSITORY / "tests" / "simulation" / "long" / "leaky_bank.py"


@pytest.fixture
def here(tmp_path: Path) -> Path:
    for file in (REPOSITORY / "examples" / "bank.py", LEAKY):
        shutil.copy(file, tmp_path)
    return tmp_path


def test_E12_a_live_system_that_loses_money_ends_with_1_and_the_values(here: Path) -> None:
    result = run_apart("up", "leaky_bank.py:robbed", "--create", "--for", "1", "--create", cwd=here)
    assert result.code == 1
    assert "conserved ✗ 398 ≠ 400 (judged " in result.out
    log = (here / "snapshots" / "run" / "log" / "coordinator.log").read_text()
    assert "warning: violated condition=conserved snapshot=000001-00000001-coordinator found=398 expected=400" in log


def test_E12_a_live_system_that_loses_nothing_exits_with_0(here: Path) -> None:
    result = run_apart("up", "bank.py:bank", "--create", "--for", "1", "--json", "--create", cwd=here)
    assert result.code == 0
    (condition,) = json.loads(result.out)["conditions"]
    assert (condition["name"], condition["latest"]["found"], condition["violated"]) == ("conserved", "800", 0)
    assert condition["holds"] >= 1


def test_E12_G1_G2_a_live_violated_invariant_and_a_deadlock_are_shown_and_end_with_1(here: Path) -> None:
    shutil.copy(CLERKS, here)
    log_file = here / "snapshots" / "run" / "log" / "coordinator.log"

    def begun() -> list[str]:
        log = log_file.read_text() if log_file.exists() else ""
        return [line for line in log.splitlines() if "warning: violated condition=" in line]

    command = [sys.executable, "-m", "strobe", "up", "stuck_clerks.py:clerks", "--create", "--interval", "0.1"]
    with subprocess.Popen(command, cwd=here, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as program:
        wait_until("both violations", lambda: len(begun()) >= 2)
        result = interrupted(program)
    assert result.code == 1
    assert "below_limit ✗ the meter is above 20 (judged " in result.out
    assert "deadlock: a→b→a (judged " in result.out
    assert "meter.number >= 0 ✓ (judged " in result.out
    assert "termination: not terminated; active: meter" in result.out
    reason = result.out.splitlines()[-1].partition("; exit code 1: ")[2]
    assert "below_limit violated in " in reason
    assert "deadlock violated in " in reason
    assert "meter.number" not in reason
    assert len(begun()) == 2
    assert any("condition=deadlock" in line and "found=a→b→a" in line for line in begun())


def test_E12_a_killed_judge_is_replaced_and_the_system_continues(here: Path) -> None:
    with running(here, f"{here / 'bank.py'}:bank", ("a", "b", "c", "d"), "--interval", "0.1") as live:
        live.wait("a verdict", lambda s: s.conditions[0].holds > 0)
        os.kill(wait_until("the judge", live.judge_pid), signal.SIGKILL)
        status = live.wait("verdicts after it", lambda s: s.conditions[0].undecided and s.conditions[0].latest.found)
        holds = status.conditions[0].holds
        status = live.wait("another verdict", lambda s: s.conditions[0].holds > holds)
        assert (status.conditions[0].violated, status.epoch) == (0, 1)
