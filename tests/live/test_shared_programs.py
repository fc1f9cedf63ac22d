"""Several processes in one program: channels in memory and over TCP, crashes of a program, requests about one of it."""

import pytest
from tests.live.support import ledger
from tests.live.support.checks import verify_all
from tests.live.support.harness import LEDGER, running

from strobe.runtime.api.client import RequestRefused


@pytest.mark.parametrize("name", ["ledger", "ledger_unordered"])
def test_R1_a_killed_program_of_several_processes_costs_one_rollback(tmp_path, name):
    """R1, P1: channels a-b in memory and the others over TCP; nothing is lost or applied twice."""
    with running(tmp_path, f"{LEDGER}:{name}", ["c"], "--interval", "0.1", shared=[("a", "b")]) as live:
        status = live.wait_running()
        pids = {process.name: process.pid for process in status.processes}
        assert pids["a"] == pids["b"] != pids["c"]
        live.wait_committed(3)
        live.wait_progress()
        live.kill("a")
        status = live.wait_rolled_back(1)
        assert [rollback.blamed for rollback in status.rollbacks] == ["a"]
        live.kill("c")
        status = live.wait_rolled_back(2)
        live.wait_progress()
        assert [rollback.blamed for rollback in status.rollbacks] == ["a", "c"]
        assert ledger.assert_exactly_once(getattr(ledger, name), live.last_snapshot()) > 0
        with pytest.raises(RequestRefused, match="cannot leave: it shares"):
            live.client.leave("a")
        with pytest.raises(RequestRefused, match="cannot hand over: it shares"):
            live.client.restart("a")
    verify_all(tmp_path / "store")


def test_R1_a_handler_that_fails_ends_its_program_and_is_named_in_the_report(tmp_path):
    """R1: each rollback blames one process, and when there are too many the report has the error of the failing one."""
    limit = {"coordinator.rollbacks_max": 1}
    with running(
        tmp_path, f"{LEDGER}:poisoned", ["c"], "--interval", "0.1", settings=limit, shared=[("a", "b")]
    ) as live:
        live.wait_running()
        status = live.wait("the end", lambda s: s.halted)
        assert "process b, in the same program, has failed: RuntimeError" in status.halted
        assert [rollback.blamed for rollback in status.rollbacks] == ["a"]
        live.supervisor.stopping = True
