"""Planned restarts of a live system under load (E11): no rollback, and every message exactly once."""

import signal
import subprocess
import sys
from contextlib import contextmanager

import msgspec
import pytest
from tests.live.support import ledger
from tests.live.support.checks import check_everything
from tests.live.support.fused import RestartStep
from tests.live.support.harness import LEDGER, running, running_with_fuse, wait_until
from tests.live.test_commit_steps import Burning


def roll(live, names):
    """Restart processes one after the other, as an operator does."""
    command = [sys.executable, "-m", "strobe", "restart", *names, "--store", str(live.store), "--json"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as operator:
        wait_until("the operator", lambda: operator.poll() is not None, between=live.status)
        found = operator.stdout.read(), operator.stderr.read()
    assert operator.returncode == 0, (found, live.logs())
    restarted = msgspec.json.decode(found[0])
    assert [(one["process"], one["rolled_back"]) for one in restarted] == [(name, False) for name in names]


def test_E11_a_rolling_deploy_rolls_nothing_back(tmp_path):
    with under_load(tmp_path, "mixed") as live:
        roll(live, live.names)


@pytest.mark.parametrize("name", ["mixed_unordered", "with_sinks_overtaking"])
def test_E11_processes_that_are_ended_at_once_all_hand_over(tmp_path, name):
    with under_load(tmp_path, name) as live:
        starts = {process: live.supervisor.starts(process) for process in live.names}
        for process in live.names:
            live.kill(process, signal.SIGTERM)
        again = live.supervisor.starts
        wait_until("all again", lambda: all(again(one) > starts[one] for one in starts), between=live.status)


@contextmanager
def under_load(directory, name):
    """Run a system of the ledger; after the block, it must have rolled nothing back, and be exactly-once."""
    output, system = directory / "output", getattr(ledger, name)
    output.mkdir()
    options = ("--interval", "0.05")
    environment = {"STROBE_TEST_OUTPUT": str(output)}
    with running(directory, f"{LEDGER}:{name}", tuple(system.processes), *options, environment=environment) as live:
        live.wait_progress()
        live.wait_committed(2)
        yield live
        live.wait_progress()
        live.wait_committed(2)
        status = live.status()
        assert (status.epoch, status.rollbacks) == (1, []), live.logs()
        ledger.assert_exactly_once(system, live.last_snapshot())
    assert check_everything(system, directory / "store", output).lines > 0


def test_E11_a_crash_at_any_step_of_a_hand_over_loses_nothing(tmp_path):
    """E11: the system rolls back only if the hand-over is not known yet, or if a successor has claimed it."""
    with running_with_fuse(tmp_path, "with_sinks", ledger.NAMES, "--interval", "0.05") as (live, fuse, output):
        live.wait_running()
        live.wait_committed(1)
        burning = Burning(live, fuse)
        for step in RestartStep:
            before = live.wait_running()
            burning.light("b", step.name, after=lambda: live.client.restart("b"))
            rolled_back = live.wait_running().epoch - before.epoch
            if step is not RestartStep.REPORTED:  # whether the report got out depends on the operating system
                assert rolled_back == (step is not RestartStep.READ), f"{step}\n{live.logs()}"
        ledger.assert_exactly_once(ledger.with_sinks, live.last_snapshot())
    check_everything(ledger.with_sinks, tmp_path / "store", output)


def test_E11_a_process_that_cannot_start_stops_nobody(tmp_path):
    """E11: it has done nothing yet, so it is tried until it starts, without a rollback of the others."""
    environment = {"STROBE_TEST_OUTPUT": str(tmp_path)}
    with running(tmp_path, f"{LEDGER}:unready", ledger.NAMES, "--interval", "0.1", environment=environment) as live:
        wait_until("several starts", lambda: live.supervisor.starts("b") > 4, between=live.status)
        status = live.wait("its reason", lambda s: any("it is not ready" in trouble.problem for trouble in s.troubles))
        assert status.halted is None
        (tmp_path / "b-ready.jsonl").touch()
        live.wait_running()
        live.wait_committed(1)
        assert live.status().epoch == 1
        ledger.assert_exactly_once(ledger.unready, live.last_snapshot())
