"""Real processes over real TCP: snapshots while they run, crashes of any program, rollbacks that lose nothing."""

import os
import signal
import socket

import pytest
from tests.cli.command_line import run as command
from tests.live.support import ledger
from tests.live.support.checks import check_everything, verify_all, working_on
from tests.live.support.harness import DEADLINE_S, LEDGER, running, wait_until
from tests.live.support.stores import damage

from strobe.cli.live.child import COORDINATOR
from strobe.runtime.addresses import parse_address
from strobe.storage import Store


@pytest.mark.parametrize("name", ["ledger", "ledger_unordered", "keyed"])
def test_C7_snapshots_are_taken_of_processes_that_never_stop(tmp_path, name):
    """C7, E1: with both protocols, and plain or keyed state, every message is applied or in flight exactly once."""
    with running(tmp_path, f"{LEDGER}:{name}", ledger.NAMES, "--interval", "0.1") as live:
        live.wait_running()
        live.wait_committed(5)
        before = live.wait_running()
        snapshot = live.last_snapshot()
        assert ledger.assert_exactly_once(getattr(ledger, name), snapshot) > 0
        after = live.wait(
            "events going on",
            lambda s: all(p.position > before.processes[i].position for i, p in enumerate(s.processes)),
        )
        assert after.epoch == 1
    assert verify_all(tmp_path / "store") >= 6
    check_metadata(getattr(ledger, name), tmp_path / "store")


def check_metadata(system, store):
    """E1: ids sort in the order of commits; manifests have the origin, the durations and the sizes of snapshots."""
    opened = Store.open(store)
    names = [name for _, name, _ in sorted(opened.list(), key=lambda item: item[0])]
    assert names == sorted(names)
    for _, name, manifest in opened.list():
        assert manifest.protocol == system.protocol
        assert manifest.initiators
        assert set(manifest.view.processes) == set(system.processes)
        assert 0 < manifest.started_us < manifest.completed_us
        assert set(manifest.processes) == set(system.processes)
        for process, record in manifest.processes.items():
            assert record.recorded_us > 0
            assert record.pause_us > 0
            assert record.duration_us > 0
            assert record.state.bytes > 0
            assert set(record.in_flight) == {
                channel.id for channel in manifest.view.channels if channel.target == process
            }
        sections = [section for record in manifest.processes.values() for section in record.in_flight.values()]
        snapshot = opened.load(name)
        assert sum(section.messages for section in sections) == snapshot.in_flight_messages
        assert sum(section.bytes for section in sections) >= snapshot.in_flight_bytes


@pytest.mark.parametrize("name", ["ledger", "ledger_unordered", "keyed", "batches"])
def test_R1_after_kill_minus_nine_all_processes_restore_one_cut(tmp_path, name):
    """R1: nothing is lost or applied twice, compared as multisets of message ids."""
    with running(tmp_path, f"{LEDGER}:{name}", ledger.NAMES, "--interval", "0.1") as live:
        live.wait_running()
        live.wait_committed(3)
        live.kill("b")
        status = live.wait_rolled_back(1)
        assert status.rollbacks[-1].restored is not None
        assert status.rollbacks[-1].blamed == "b"
        live.wait_committed(3)
        assert ledger.assert_exactly_once(getattr(ledger, name), live.last_snapshot()) > 0
    verify_all(tmp_path / "store")


def test_E5_the_first_snapshot_after_a_rollback_is_a_delta_too(tmp_path):
    """E5: of every process's state, even of the restarted one; the parent is the restored snapshot."""
    with running(tmp_path, f"{LEDGER}:mostly_constant", ledger.NAMES, "--interval", "0") as live:
        live.wait_running()
        live.wait_taken()
        live.wait_taken()
        live.kill("b")
        restored = live.wait_rolled_back(1).rollbacks[-1].restored
        ledger.assert_exactly_once(ledger.mostly_constant, live.last_snapshot())
    manifests = {name: manifest for _, name, manifest in Store.open(tmp_path / "store").list()}
    first = next(manifest for manifest in manifests.values() if manifest.epoch > 1)
    for name, record in first.processes.items():
        parent = manifests[restored].processes[name]
        assert (record.state, record.deltas[:-1]) == (parent.state, parent.deltas)
        assert 10 * record.deltas[-1].bytes < record.state.bytes


def test_E7_processes_continue_when_the_coordinator_is_killed(tmp_path):
    """E7: the next coordinator finishes or aborts the open snapshot; no rollback is needed."""
    with running(tmp_path, f"{LEDGER}:ledger", ledger.NAMES, "--interval", "0.05") as live:
        live.wait_running()
        live.wait_committed(3)
        for _ in range(3):
            live.kill("coordinator")
            live.wait_committed(2)
        status = live.wait_running()
        assert status.epoch == 1
        ledger.assert_exactly_once(ledger.ledger, live.last_snapshot())
    verify_all(tmp_path / "store")


def test_E7_a_coordinator_waits_until_its_port_is_free_again(tmp_path):
    """E7: nodes look for it at this port. Processes continue, and nothing is undone."""
    with running(tmp_path, f"{LEDGER}:ledger", ledger.NAMES, "--interval", "0.1") as live:
        live.wait_running()
        live.wait_committed(1)
        live.kill(COORDINATOR)
        live.wait_ended(COORDINATOR)
        with socket.create_server(parse_address(live.supervisor.listen, "listen")):
            wait_until("a start in vain", lambda: (COORDINATOR, 3) in live.gone, between=live.tick)
        assert live.wait_running().epoch == 1
        live.wait_committed(1)
    verify_all(tmp_path / "store")


def test_a_process_frozen_for_a_while_returns_without_a_rollback(tmp_path):
    """E6: the open snapshot is aborted for its silence; when it continues, links resume and nothing is undone."""
    options = ("--interval", "0.1", "--silence", "0.5", "--set", "node.heartbeat_s=0.1")
    with running(tmp_path, f"{LEDGER}:ledger", ledger.NAMES, *options) as live:
        live.wait_running()
        live.kill("c", signal.SIGSTOP)
        live.wait("it to be missed", lambda s: any(p.name == "c" and p.state != "running" for p in s.processes))
        live.kill("c", signal.SIGCONT)
        live.wait_running()
        live.wait_committed(2)
        assert live.epoch() == 1
        ledger.assert_exactly_once(ledger.ledger, live.last_snapshot())


def test_processes_initiate_snapshots_themselves(tmp_path):
    """Two of them, at any time, possibly at once; nobody else requests any."""
    with running(tmp_path, f"{LEDGER}:initiating", ledger.NAMES, "--interval", "0") as live:
        live.wait_running()
        wait_until("snapshots of both", lambda: initiators(live.store) >= {"b", "c"}, between=live.tick)
        assert len(working_on(live.store)) == 4
    assert initiators(tmp_path / "store") == {"b", "c"}
    check_everything(ledger.initiating, tmp_path / "store")


def initiators(store):
    """Return the processes that have initiated a complete snapshot."""
    return {name for _, _, manifest in Store.open(store).list() for name in manifest.initiators}


def test_R2_released_output_is_each_record_once_byte_for_byte(tmp_path):
    """R2: records are released with the snapshot that covers them, whatever is killed at any time."""
    output = tmp_path / "output"
    output.mkdir()
    environment = {"STROBE_TEST_OUTPUT": str(output)}
    with running(tmp_path, f"{LEDGER}:with_sinks", ledger.NAMES, "--interval", "0.1", environment=environment) as live:
        live.wait_running()
        for victim in ("a", "b", "c"):
            live.wait_committed(2)
            epoch = live.epoch()
            live.kill(victim)
            live.wait_rolled_back(epoch)
        live.wait_committed(2)
        snapshot = live.last_snapshot()
        ledger.assert_exactly_once(ledger.with_sinks, snapshot)
        live.wait_released(ledger.with_sinks, snapshot, output)
    for name, fragment in snapshot.fragments.items():
        released = (output / f"{name}.jsonl").read_bytes()
        covered = fragment.state.sinks[f"out-{name}"]
        assert len(released) >= covered
        lines = released[:covered].splitlines()
        assert len(lines) == len(set(lines)) == ledger.applied_count(ledger.with_sinks, snapshot, name)


def test_R2_a_replacement_waits_until_the_old_process_frees_its_output(tmp_path):
    """A stopped process is missed and replaced; when it continues, it learns that it was replaced, and ends."""
    output = tmp_path / "output"
    output.mkdir()
    environment = {"STROBE_TEST_OUTPUT": str(output)}
    with running(
        tmp_path, f"{LEDGER}:with_sinks", ledger.NAMES, "--interval", "0.1", "--silence", "1.5", environment=environment
    ) as live:
        live.wait_running()
        live.wait_committed(2)
        live.kill("c", signal.SIGSTOP)
        with live.replaced("c") as first:
            live.wait(
                "the second c to say whom it waits for",
                lambda s: any(f"in use by pid {first.pid} on host" in trouble.problem for trouble in s.troubles),
            )
            first.send_signal(signal.SIGCONT)
            assert first.wait(DEADLINE_S) == 1
        assert live.wait_rolled_back(1).epoch == 2
        live.wait_running()
        live.wait_committed(3)
        assert live.gone == []
    check_everything(ledger.with_sinks, tmp_path / "store", output)


def test_R1_E9_commands_take_a_snapshot_and_roll_the_system_back_to_it(tmp_path):
    """R1, E9: to an earlier one, and on from there; a damaged or unknown one is refused, and all processes continue."""
    with running(tmp_path, f"{LEDGER}:ledger", ledger.NAMES, "--interval", "0") as live:
        live.wait_running()
        store = ("--store", live.store)
        first, second = (command("snapshot", "take", *store, "--json").document["id"] for _ in range(2))
        restored = command("restore", first, *store, "--json")
        assert restored.code == 0, restored
        assert (restored.document["restored"], restored.document["epoch"]) == (first, 2)
        assert set(restored.document["undone"]) <= set(ledger.NAMES)
        assert live.wait_rolled_back(1).rollbacks[-1].restored == first
        live.wait_running()
        damage(live.store, second, "b")
        refused = command("restore", second, *store)
        assert refused.code == 1
        assert second in refused.error
        unknown = command("restore", "000001-00000999", *store)
        assert unknown.code == 2
        assert "000001-00000999" in unknown.error
        assert live.epoch() == 2
        last = command("snapshot", "take", *store)
        assert (last.code, last.err) == (0, "")
        assert ledger.assert_exactly_once(ledger.ledger, live.last_snapshot()) > 0


def test_a_restarted_system_continues_from_its_newest_snapshot(tmp_path):
    with running(tmp_path, f"{LEDGER}:ledger", ledger.NAMES, "--interval", "0.1") as live:
        live.wait_running()
        live.wait_committed(2)
        first = live.last_snapshot()
    with running(tmp_path, f"{LEDGER}:ledger", ledger.NAMES, "--interval", "0.1") as live:
        live.wait_running()
        second = live.last_snapshot()
        assert second.id.epoch == 2
        counted = [ledger.assert_exactly_once(ledger.ledger, snapshot) for snapshot in (first, second)]
        assert counted[1] > counted[0] > 0


def test_nothing_is_left_running(tmp_path):
    with running(tmp_path, f"{LEDGER}:ledger", ledger.NAMES) as live:
        live.wait_running()
        pids = [live.supervisor.pid(name) for name in (*ledger.NAMES, "coordinator")]
    for pid in pids:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)
    assert not (tmp_path / "store" / "run" / "coordinator.json").exists()
