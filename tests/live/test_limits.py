"""Limits of a live system: channel recording, a full disk, credit, timeouts. The application continues."""

import os
import resource
import signal
import subprocess
from contextlib import suppress

import msgspec
import pytest
from tests.live.support import ledger
from tests.live.support.checks import check_everything, complete_snapshots
from tests.live.support.footprints import Footprint
from tests.live.support.harness import LEDGER, running, wait_until

MIB = 1 << 20
PAIR = ("a", "b")


@pytest.mark.parametrize("bound", [1 * MIB, 4 * MIB])
def test_E3_recording_beyond_its_limits_spills_then_aborts_the_snapshot(tmp_path, bound):
    """E3: the marker that would end the recording is blocked while the channel is flooded."""
    settings = {"node.recording_bytes_max": bound, "node.spill_bytes_max": 2 * bound, "coordinator.timeout_s": 60}
    with running(
        tmp_path, f"{LEDGER}:flooded", PAIR, "--interval", "0.1", settings=settings, through_proxy=True
    ) as live:
        live.wait_running()
        live.wait_committed(1)
        live.proxy.block("a->b")
        reason = f"recording its channels took more than {bound:,} bytes of memory and {2 * bound:,} bytes of disk"
        wait_until("recording to be given up", lambda: live.aborted(reason), between=live.tick)
        assert "bytes of channel state on disk" in live.log("a")
        live.wait_progress()
        live.proxy.unblock()
        live.wait_committed(3)
        assert live.epoch() == 1
    check_everything(ledger.flooded, tmp_path / "store")


@pytest.mark.parametrize("bound", [1 * MIB, 4 * MIB])
def test_E3_the_application_continues_while_spilled_bytes_are_held(tmp_path, bound):
    """E3: the marker that would end the recording is blocked, so everything spilled is held until it arrives."""
    # On a busy machine the disk may be too slow for the bound, so that the snapshot is aborted and retried.
    settings = {"node.recording_bytes_max": bound, "coordinator.timeout_s": 60, "coordinator.attempts_max": 1000}
    with running(tmp_path, f"{LEDGER}:flooded", PAIR, "--interval", "0", settings=settings, through_proxy=True) as live:
        live.wait_running()
        live.proxy.block("a->b")
        live.client.take(wait=False, initiators=("a",))

        def positions(status):
            return {process.name: process.position for process in status.processes}

        def held(status):
            return any(process.spilled_bytes > bound for process in status.processes if process.name == "a")

        def go_on_while_held():
            """Return whether both had events while `a` held them; on a slow disk, the caller tries again."""
            before = positions(live.wait("spilled bytes", held))
            later = live.wait(
                "events of everybody",
                lambda s: not held(s) or all(reached >= before[name] + 100 for name, reached in positions(s).items()),
            )
            return held(later)

        wait_until("events of everybody while spilled bytes are held", go_on_while_held)
        live.proxy.unblock()
        live.wait_committed(1)
        assert live.epoch() == 1
    check_everything(ledger.flooded, tmp_path / "store")


@pytest.mark.parametrize("bound", [1 * MIB, 4 * MIB])
def test_E3_the_application_runs_on_while_a_large_snapshot_is_aborted(tmp_path, bound):
    """E3: `a` has given up the snapshot, and the coordinator, which would abort it, is stopped."""
    pulse = tmp_path / "pulse"
    pulse.mkdir()

    def counts():
        """Return what `a` has applied, and what each process has sent."""
        (applied, sent), (_, sent_by_b) = (map(int, (pulse / name).read_text().split()) for name in PAIR)
        return applied, sent, sent_by_b

    settings = {"node.recording_bytes_max": bound, "node.spill_bytes_max": 2 * bound, "coordinator.timeout_s": 600}
    with running(
        tmp_path,
        f"{LEDGER}:flooded_and_counted",
        PAIR,
        *("--interval", "0", "--silence", "600"),
        settings=settings,
        environment={"STROBE_TEST_PULSE": str(pulse)},
        through_proxy=True,
    ) as live:
        live.wait_running()
        live.proxy.block("a->b")
        wait_until("counts of both", lambda: all((pulse / name).exists() for name in PAIR))
        live.kill("b", signal.SIGSTOP)  # nothing is flooded before the coordinator is stopped
        live.client.take(wait=False, initiators=("a",))
        live.wait("a recording", lambda s: any(part.recorded for snapshot in s.open for part in snapshot.parts))
        live.kill("coordinator", signal.SIGSTOP)
        live.kill("b", signal.SIGCONT)
        wait_until("a to give it up", lambda: "is aborted here: recording its channels took more than" in live.log("a"))
        before = counts()
        wait_until("progress", lambda: all(now >= then + 100 for now, then in zip(counts(), before, strict=True)))
        live.kill("coordinator", signal.SIGCONT)
        reason = f"recording its channels took more than {bound:,} bytes of memory"
        wait_until("it to be aborted", lambda: live.aborted(reason), between=live.tick)
        live.proxy.unblock()
        live.wait_committed(1)
        assert live.epoch() == 1
    check_everything(ledger.flooded_and_counted, tmp_path / "store")


def test_E3_what_was_spilled_is_part_of_the_snapshot(tmp_path):
    """E3, P1: recorded channels that were spilled to disk are committed byte for byte."""
    bound = 4 * MIB
    settings = {"node.recording_bytes_max": bound}
    with running(tmp_path, f"{LEDGER}:flooded", PAIR, "--interval", "0", settings=settings, through_proxy=True) as live:
        live.wait_running()
        live.proxy.block("a->b")
        live.client.take(wait=False, initiators=("a",))
        wait_until(
            "the heartbeat to tell of it",
            lambda: (a := live.process("a")) and a.spilled_bytes > bound and a.recording_bytes <= bound,
        )
        live.proxy.unblock()
        live.wait_committed(1)
        live.wait(
            "memory and disk to be freed", lambda s: not any(p.recording_bytes or p.spilled_bytes for p in s.processes)
        )
    [snapshot] = complete_snapshots(tmp_path / "store")
    assert snapshot.in_flight_bytes > bound
    check_everything(ledger.flooded, tmp_path / "store")


def test_C7_snapshots_complete_with_a_receiver_slower_than_its_sender(tmp_path):
    """C7: nobody takes the receiver for dead, and its marker does not wait behind a full channel."""
    with running(tmp_path, "tests.live.support.slow_target:flood", PAIR, "--interval", "1") as live:
        live.wait_running()
        live.wait_committed(6)
        status = live.wait_running()
        assert (status.epoch, status.aborted) == (1, 0)
    for snapshot in complete_snapshots(tmp_path / "store"):
        sent, taken = (msgspec.msgpack.decode(snapshot.fragments[name].state.data)["messages"] for name in PAIR)
        assert sent - taken == snapshot.in_flight_messages


def test_back_pressure_stops_a_sender_with_a_bounded_backlog(tmp_path):
    """M2: what is sent and not received is bounded at both ends, in a real process; then all of it arrives, once."""
    narrow = {"node.window_bytes": 65_536, "node.backlog_bytes_max": 65_536}
    with running(
        tmp_path, "tests.live.support.slow_target:flood", PAIR, "--interval", "0", "--silence", "600", settings=narrow
    ) as live:
        live.wait_progress(10)
        before = Footprint.of(live.supervisor.pid("a"))
        live.kill("b", signal.SIGSTOP)
        live.wait("a to wait for credit", lambda s: s.channels[0].waiting_s > 1)
        waiting = live.status()
        later = live.wait("some more time", lambda s: s.channels[0].waiting_s > waiting.channels[0].waiting_s + 1)
        (a,) = (process for process in waiting.processes if process.name == "a")
        assert a.position in {process.position for process in later.processes}
        # All messages of the event that filled it are kept: 200.
        assert later.channels[0].backlog_bytes < 65_536 + 40_000
        assert Footprint.of(live.supervisor.pid("a")).memory_bytes < before.memory_bytes + 8 * MIB
        live.kill("b", signal.SIGCONT)
        live.wait_progress(10)
        snapshot = live.last_snapshot()
        assert live.epoch() == 1
    sent, taken = (msgspec.msgpack.decode(snapshot.fragments[name].state.data)["messages"] for name in PAIR)
    assert sent - taken == snapshot.in_flight_messages


class SmallDisk:
    """A store on a separate file system of 64 MiB that can be filled."""

    def __init__(self, directory):
        self.directory = directory
        subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64m", "none", directory], check=True)

    def fill(self, live, leave_bytes):
        with (self.directory / "ballast").open("wb", buffering=0) as file:
            with suppress(OSError):
                while True:
                    file.write(bytes(MIB))
            file.truncate(file.tell() - leave_bytes)

    def make_room(self, live):
        (self.directory / "ballast").unlink()

    def close(self):
        subprocess.run(["umount", "-l", self.directory], check=True)


class SmallFiles:
    """The same without the right to mount: files cannot grow any more."""

    def __init__(self, directory):
        pass

    def fill(self, live, leave_bytes):
        for name in ("a", "b", *(() if leave_bytes else ("coordinator",))):
            self._limit(live, name, leave_bytes)

    def make_room(self, live):
        for name in ("a", "b", "coordinator"):
            self._limit(live, name, resource.RLIM_INFINITY)

    def close(self):
        pass

    def _limit(self, live, name, limit_bytes):
        resource.prlimit(live.supervisor.pid(name), resource.RLIMIT_FSIZE, (limit_bytes, resource.RLIM_INFINITY))


def may_mount():
    return os.geteuid() == 0 and subprocess.run(["unshare", "--mount", "true"], check=False).returncode == 0


DISKS = {"files that cannot grow": SmallFiles} | ({"a full disk": SmallDisk} if may_mount() else {})


@pytest.mark.parametrize("kind", DISKS)
def test_a_full_disk_aborts_snapshots_and_the_system_runs_on(tmp_path, kind):
    """E3: first states find no room, then the log. The application continues; snapshots resume when there is room."""
    disk = DISKS[kind](tmp_path)
    try:
        with running(tmp_path, f"{LEDGER}:hoarders", PAIR, "--interval", "0.1", "--keep-last", "2") as live:
            live.wait_running()
            live.wait_committed(1)
            disk.fill(live, 500_000)
            wait_until("a snapshot without room", lambda: live.aborted("make room, then try again"), between=live.tick)
            live.wait_progress()
            disk.make_room(live)
            live.wait_committed(1)
            disk.fill(live, 0)
            live.wait("trouble with the store", lambda s: any(trouble.kind == "store" for trouble in s.troubles))
            live.wait_progress()
            disk.make_room(live)
            live.wait("no trouble", lambda s: not s.troubles)
            live.wait_committed(1)
            assert live.epoch() == 1
            assert live.gone == []
        check_everything(ledger.hoarders, tmp_path / "store")
    finally:
        disk.close()


def test_E7_without_a_coordinator_nodes_free_buffers_and_continue(tmp_path):
    """E7: the marker of an open snapshot is blocked, and the coordinator does not return in time."""
    pulse = tmp_path / "pulse"
    pulse.mkdir()
    with running(
        tmp_path,
        f"{LEDGER}:beating",
        ledger.NAMES,
        "--interval",
        "0",
        settings={"node.patience_s": 3, "coordinator.timeout_s": 6},  # time enough to end the coordinator before
        environment={"STROBE_TEST_PULSE": str(pulse)},
        through_proxy=True,
    ) as live:
        live.wait_running()
        live.proxy.block("a->b")
        live.client.take(wait=False, initiators=("a",))
        live.wait("everybody recording", lambda s: s.open and all(part.recorded for part in s.open[0].parts))
        live.end("coordinator")
        logged = {name: len(live.log(name)) for name in ledger.NAMES}
        live.proxy.unblock()
        for name in ledger.NAMES:
            wait_until(f"{name} to free it", lambda name=name: "no outcome for 3 s" in live.log(name)[logged[name] :])
        before = {name: int((pulse / name).read_text()) for name in ledger.NAMES}
        wait_until("life", lambda: all(int((pulse / name).read_text() or 0) > before[name] + 10 for name in before))
        live.start_again("coordinator")
        status = live.wait_running()
        assert status.epoch == 1
        assert not any(process.recording_bytes or process.spilled_bytes for process in status.processes)
        ledger.assert_exactly_once(ledger.beating, live.last_snapshot())
    check_everything(ledger.beating, tmp_path / "store")


def test_a_handler_that_sends_endlessly_is_stopped_and_named(tmp_path):
    """The limit of an event holds in a real process: it ends long before the machine is out of memory."""
    line = ledger.Runaway.receive.__code__.co_firstlineno
    with running(
        tmp_path, f"{LEDGER}:runaway", PAIR, "--interval", "0", settings={"node.event_bytes_max": 20 * MIB}
    ) as live:
        wait_until("b to end", lambda: ("b", 1) in live.gone, between=live.tick)
        assert "process 'b' has sent, emitted and set timers for more than 20,971,520 bytes in one event" in live.log(
            "b"
        )
        assert f"in Runaway.receive() at {os.path.relpath(LEDGER)}:{line};" in live.log("b")
        assert f"({os.path.relpath(LEDGER)}:{line + 2}, in receive())" in live.log("b")


def test_a_cycle_of_processes_waiting_for_credit_is_reported(tmp_path):
    """Both send two messages for each one received, through windows too small for that. The deadlock is reported."""
    settings = {"node.window_bytes": 20_000, "node.backlog_bytes_max": 20_000}
    with running(tmp_path, f"{LEDGER}:doubling", PAIR, "--interval", "0", settings=settings) as live:
        status = live.wait(
            "the deadlock to be reported", lambda s: any(trouble.kind == "credit" for trouble in s.troubles)
        )
        [trouble] = [trouble for trouble in status.troubles if trouble.kind == "credit"]
        assert "a->b" in trouble.problem
        assert "b->a" in trouble.problem
        assert all(process.state == "running" for process in status.processes)


def test_a_partition_is_not_reported_as_a_credit_cycle(tmp_path):
    """Both wait for credit, but have room to continue; when the network works again, no trouble is left."""
    settings = {"node.window_bytes": 20_000, "node.backlog_bytes_max": 20_000_000}
    with running(
        tmp_path, f"{LEDGER}:hoarders", PAIR, "--interval", "0", settings=settings, through_proxy=True
    ) as live:
        live.wait_running()
        live.wait("messages both ways", lambda s: all(channel.received for channel in s.channels))
        live.proxy.block("a->b", "b->a")
        status = live.wait("both to be reported", lambda s: sum(trouble.kind == "slow" for trouble in s.troubles) == 2)
        assert {trouble.kind for trouble in status.troubles} == {"slow"}
        live.wait_progress()
        live.proxy.unblock()
        live.wait("no trouble", lambda s: not s.troubles)
        assert "credit deadlock" not in live.log("coordinator")
