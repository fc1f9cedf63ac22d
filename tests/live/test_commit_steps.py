"""The coordinator or a node of a live system is killed after each step of a durable write (S1, E7, R2)."""

import os
import signal
import time
from contextlib import suppress
from pathlib import Path

import pytest
from tests.live.support import fused, ledger
from tests.live.support.checks import check_everything
from tests.live.support.harness import running_with_fuse, wait_until

from strobe.cli.live.child import COORDINATOR
from strobe.errors import TransportError
from strobe.runtime.connectors.sink_staging import SinkStep
from strobe.storage import CommitStep

ENTRY_STEPS = [step.name for step in CommitStep if step.name.startswith("ENTRY")]
BLOB_STEPS = [step.name for step in CommitStep if step.name.startswith("BLOB")]
SINK_STEPS = [step.name for step in SinkStep]
STOPPED_S = 0.3


@pytest.fixture
def burning(tmp_path):
    """Run a system whose programs have a fuse; yield an object that lights the fuse."""
    with running_with_fuse(tmp_path, "with_sinks", ledger.NAMES, "--interval", "0.02") as (live, fuse, output):
        live.wait_running()
        yield Burning(live, fuse)
        live.wait_running()
        ledger.assert_exactly_once(ledger.with_sinks, live.last_snapshot())
    check_everything(ledger.with_sinks, tmp_path / "store", output)


class Burning:
    """A running system with a fuse."""

    def __init__(self, live, fuse):
        self.live = live
        self._fuse = fuse

    def roll_back(self):
        """Request a rollback from a coordinator that is killed before it answers."""
        with pytest.raises(TransportError):
            self.live.client.restore()

    def _lay(self, *words):
        self._fuse.with_suffix(".new").write_text(" ".join(words))
        self._fuse.with_suffix(".new").rename(self._fuse)

    def stop(self, *words):
        """Stop a program right after a step for long enough that the others continue; then continue it."""
        stopped = self._fuse.with_suffix(fused.STOPPED)
        stopped.unlink(missing_ok=True)
        self._lay(*words, fused.STOP)
        wait_until(f"the stop of {words}", lambda: stopped.exists() and stopped.read_text(), between=self.live.tick)
        pid = int(stopped.read_text())
        wait_until(f"{words} to stand still", lambda: state_of(pid) == "T")
        time.sleep(STOPPED_S)  # no event shows that the others have had enough time
        os.kill(pid, signal.SIGCONT)
        self.live.wait_running()
        self.live.wait_committed(1)

    def light(self, *words, after=lambda: None):
        """Kill a program right after a step, and wait until this has happened and snapshots continue."""
        died = len(self.live.gone)
        self._lay(*words)
        after()
        death = (words[0], -9)
        wait_until(f"the death of {words}", lambda: death in self.live.gone[died:], between=self.live.tick)
        assert not self._fuse.exists()
        self.live.wait_committed(1)


def test_S1_E7_the_coordinator_is_killed_at_each_step_of_a_commit(burning):
    """S1, E7: the entry is in the log or not; the next coordinator completes or aborts it, without a rollback."""
    for step in ENTRY_STEPS:
        burning.light(COORDINATOR, step, "Commit")
    burning.light(COORDINATOR, "ENTRY_LINKED", "Begin")
    assert burning.live.wait_running().epoch == 1


def state_of(pid):
    """Return the letter that Linux has for the state of a process."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


def test_S1_E6_E7_coordinator_and_node_are_paused_at_each_step(burning):
    """S1: after its pause, a program's writes build on what the others have written, or are refused."""
    for step in ENTRY_STEPS:
        burning.stop(COORDINATOR, step, "Commit")
    for step in (*BLOB_STEPS, *SINK_STEPS):
        burning.stop("a", step)


def test_S1_R1_the_coordinator_is_killed_at_each_step_of_a_rollback(burning):
    """S1, R1: the epoch has begun or not; either way all processes end up in the same one, with nothing lost."""
    burning.live.wait_committed(1)
    for step in ENTRY_STEPS:
        burning.live.wait_running()
        burning.light(COORDINATOR, step, "EpochStart", after=burning.roll_back)
    assert burning.live.wait_running().epoch > 1


def test_S1_E2_the_coordinator_is_killed_at_each_step_of_leave_and_join(tmp_path):
    """S1, E2: the view has changed or not; either way all processes end up in the same one, with nothing lost."""
    four = (*ledger.NAMES, "d")
    with running_with_fuse(tmp_path, "mixed", four, "--interval", "0.1") as (live, fuse, output):
        live.wait_progress()
        live.wait_committed(1)
        burning = Burning(live, fuse)
        for step in ENTRY_STEPS:
            burning.light(COORDINATOR, step, "ViewChange", after=lambda: ask_to_leave(live, "d"))
            if CommitStep[step] < CommitStep.ENTRY_LINKED:  # the new coordinator does not know the request to leave
                assert names_of(live.wait_running()) == set(four)
                live.client.leave("d")
            live.wait("d to be out", lambda s: s.settled and names_of(s) == set(ledger.NAMES))
            wait_until("its program to end", lambda: live.supervisor.pid("d") is None, between=live.tick)
            live.wait_committed(1)
            burning.light(COORDINATOR, step, "ViewChange", after=lambda: live.start_again("d"))
            live.wait("d to be in", lambda s: s.settled and names_of(s) == set(four))
            live.wait_running()
            live.wait_committed(1)
        ledger.assert_exactly_once(ledger.mixed, live.last_snapshot())
    check_everything(ledger.mixed, tmp_path / "store", output)


def names_of(status):
    return {process.name for process in status.processes}


def ask_to_leave(live, name):
    """Request that a process leaves; the coordinator may be killed before it answers."""
    with suppress(TransportError):
        live.client.leave(name)


def test_E6_R2_a_node_is_killed_at_each_step_of_writing_state_and_output(burning):
    """E6, S2: its snapshot is aborted or complete, never partial. R2: each record is released once, in its place."""
    for step in (*BLOB_STEPS, *SINK_STEPS):
        burning.light("a", step)
        burning.live.wait_running()


def test_E6_E5_a_node_is_killed_at_each_step_of_writing_a_keyed_state(tmp_path):
    """E6, E5: its slices are one complete blob or none; the next delta is relative to a complete snapshot."""
    with running_with_fuse(tmp_path, "keyed", ledger.NAMES, "--interval", "0.02") as (live, fuse, _):
        live.wait_running()
        for step in BLOB_STEPS:
            Burning(live, fuse).light("a", step)
            live.wait_running()
        ledger.assert_exactly_once(ledger.keyed, live.last_snapshot())
    check_everything(ledger.keyed, tmp_path / "store")
