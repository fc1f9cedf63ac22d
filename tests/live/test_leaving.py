"""All output of a process that leaves is released, whatever is killed at the same time (R2, E2)."""

import msgspec
import pytest
from tests.live.support import ledger
from tests.live.support.checks import check_everything
from tests.live.support.harness import LEDGER, running, running_with_fuse, wait_until

from strobe.cli.live.child import COORDINATOR

# Killed when output is half written; when it is durable but not reported; half released; released but not reported.
STEPS = ("FILE_WRITTEN", "FILE_DURABLE", "OUTPUT_WRITTEN", "SEGMENT_REMOVED")
LAST = f"{COORDINATOR} ENTRY_LINKED Commit"  # the snapshot is complete, but the leaver is not notified


def leave(live, name):
    """Let a process leave. It waits for a snapshot, which nobody else requests."""
    live.wait_running()
    live.client.leave(name)
    live.wait(f"{name} to be out", lambda s: s.settled and name not in [process.name for process in s.processes])
    wait_until("its program to end", lambda: (name, 0) in live.gone, between=live.tick)


def test_E2_a_link_cut_while_its_target_leaves_loses_nothing(tmp_path):
    """E2: the process is out only when it has received everything that was sent to it."""
    with running(
        tmp_path, f"{LEDGER}:ledger_and_d", (*ledger.NAMES, "d"), "--interval", "0.2", through_proxy=True
    ) as live:
        live.wait_progress()
        live.proxy.block("a->d")
        live.client.leave("d")
        live.wait("the view without d", lambda s: "leaving" in [process.state for process in s.processes])
        live.proxy.reset("a->d")
        live.wait("an unsettled view", lambda s: not s.settled)
        live.proxy.unblock()
        live.wait("d to be out", lambda s: s.settled and len(s.processes) == 3)
        wait_until("its program to end", lambda: ("d", 0) in live.gone, between=live.tick)
        live.wait_committed(2)
        assert live.wait_running().epoch == 1
    check_everything(ledger.ledger_and_d, tmp_path / "store")


def test_E2_R1_a_restore_by_a_new_coordinator_brings_a_leaver_back(tmp_path):
    """R1: its dismissal is not in the log; the restored snapshot includes it, so it stays."""
    system, names = f"{LEDGER}:ledger_and_d", (*ledger.NAMES, "d")
    with running(tmp_path, system, names, "--interval", "0") as live:
        live.wait_progress()
        with_d = live.wait_taken()
        leave(live, "d")
        live.kill(COORDINATOR)
        live.wait_ended(COORDINATOR)
        live.wait("its successor", lambda s: s.settled)
        live.client.restore(with_d)
        live.wait_running()
        assert set(live.last_snapshot().fragments) == set(names)
        leave(live, "d")
    # Everything is stopped and started, in the order of docs/operations/running.md.
    with running(tmp_path, system, (), "--interval", "0") as live:
        live.client.restore(with_d)
        for name in names:
            live.supervisor.add_node(name, live.supervisor.listen)
        live.wait_running()
        assert set(live.last_snapshot().fragments) == set(names)
        leave(live, "d")
        live.wait_taken()
    # It is not started at first, only when it is needed.
    with running(tmp_path, system, names, "--interval", "0") as live:
        live.wait_running()
        assert live.supervisor.pid("d") is None
        live.client.restore(with_d)
        live.wait_running()
        assert set(live.last_snapshot().fragments) == set(names)
    check_everything(ledger.ledger_and_d, tmp_path / "store")


@pytest.mark.parametrize(("name", "who"), [("ledger_and_d", "d"), ("with_sinks", "c")])
def test_E2_a_system_started_after_a_leave_runs_without_the_departed(tmp_path, name, who):
    """E2, R2: with and without output, even if somebody starts its node by hand; others are not affected."""
    (tmp_path / "output").mkdir()
    how = {
        "environment": {"STROBE_TEST_OUTPUT": str(tmp_path / "output")},
        "settings": {"coordinator.rollbacks_max": 1},
    }
    system, names = f"{LEDGER}:{name}", tuple(getattr(ledger, name).processes)
    with running(tmp_path, system, names, "--interval", "0", **how) as live:
        live.wait_progress()
        leave(live, who)
        live.wait_taken()
    with running(tmp_path, system, names, "--interval", "0.2", **how) as live:
        live.wait_progress()
        live.wait_committed(2)
        status = live.wait_running()
        assert (status.left, status.epoch, live.gone) == ([who], 2, [])
        live.supervisor.add_node(who, live.supervisor.listen)
        if name == "with_sinks":
            wait_until("its node to be refused", lambda: (who, 1) in live.gone, between=live.tick)
            assert "has released output already" in live.log(who)
        else:
            live.wait("it to have joined", lambda s: s.settled and not s.left)
        live.wait_committed(2)
        assert live.status().epoch == 2
    check_everything(getattr(ledger, name), tmp_path / "store")


def check_leaver(system, snapshot, name, output):
    """Check that the released file has what others sent to `name`, once and in order; return the number of lines."""
    lines = (output / f"{name}.jsonl").read_bytes().splitlines(keepends=True)
    records = [msgspec.json.decode(line) for line in lines]
    assert lines == [msgspec.json.encode(record) + b"\n" for record in records]
    senders = [other for other in snapshot.fragments if f"{other}->{name}" in ledger.sent_by(system, snapshot, other)]
    for channel in {record["channel"] for record in records} | {f"{sender}->{name}" for sender in senders}:
        ids = [record["id"] for record in records if record["channel"] == channel]
        sender = channel.partition("->")[0]  # what a process had sent that has left since is not known any more
        sent = ledger.sent_by(system, snapshot, sender)[channel] if sender in senders else len(ids)
        assert ids == list(range(1, sent + 1)), channel
    return len(records)


@pytest.mark.parametrize("name", ["with_sinks", "with_sinks_unordered"])
def test_R2_all_output_of_a_process_that_left_is_released(tmp_path, name):
    """R2, E2: it is dismissed when a snapshot without it covers all of its output."""
    output = tmp_path / "output"
    output.mkdir()
    system = getattr(ledger, name)
    environment = {"STROBE_TEST_OUTPUT": str(output)}
    with running(tmp_path, f"{LEDGER}:{name}", ledger.NAMES, "--interval", "0", environment=environment) as live:
        live.wait_progress()
        leave(live, "c")
        last = live.last_snapshot()
        assert set(last.fragments) == {"a", "b"}
        assert check_leaver(system, last, "c", output) > 0
    check_everything(system, tmp_path / "store")


def test_R2_a_leaver_killed_at_any_step_releases_its_output_once(tmp_path):
    """R2: if its output is not durable, all processes roll back and it leaves again; else it releases the rest."""
    with running_with_fuse(tmp_path, "leavers", ledger.LEAVERS, "--interval", "0") as (live, fuse, output):
        live.wait_progress(20)
        fuses = [f"{name} {step}" for name, step in zip(ledger.LEAVERS[1:], STEPS, strict=False)]
        for name, words in zip(ledger.LEAVERS[1:], (*fuses, LAST), strict=True):
            live.wait_taken()
            live.wait_progress(20)  # so that there is output that no snapshot covers
            fuse.write_text(words)
            leave(live, name)
            assert (words.split()[0], -9) in live.gone, f"nobody was killed at {words}"
        last = live.last_snapshot()
        for name in ledger.LEAVERS[1:]:
            assert check_leaver(ledger.leavers, last, name, output) > 0
    check_everything(ledger.leavers, tmp_path / "store")
