"""Two `strobe up` on one store: the last one to start leads, and the earlier one ends by itself (S1)."""

import os
import re
import signal
import subprocess
import sys
from contextlib import contextmanager, suppress

from tests.live.support import fused, ledger
from tests.live.support.checks import check_everything, working_on
from tests.live.support.harness import DEADLINE_S, LEDGER, ROOT, running_with_fuse, wait_until

from strobe.errors import StrobeError, TakenOver
from strobe.protocol.values.ids import SnapshotId
from strobe.protocol.values.log_entries import Abort, Commit, Pin, Term
from strobe.runtime.api.client import Client
from strobe.storage import Store, append_when, collect
from strobe.storage.entries.log_file import decode_entry, entry_name


class Up:
    """A `strobe up` in a separate process, and its output."""

    def __init__(self, process, output):
        self.process = process
        self.output = output

    def printed(self):
        return " ".join(self.output.read_text().split())

    def wait_ended(self):
        """Wait until it ends by itself, and return its exit code."""
        try:
            return self.process.wait(DEADLINE_S)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"it goes on: {self.printed()}") from None


@contextmanager
def up(directory, name, system, store):
    """Run `strobe up`; yield it when it reports that the system runs. In the end, kill it; its children end with it."""
    output = directory / f"{name}.txt"
    words = ["up", f"{LEDGER}:{system}", "--store", str(store), "--create", "--interval", "0.1"]
    environment = os.environ | {"STROBE_TEST_OUTPUT": str(directory)}
    with output.open("wb") as file:
        process = subprocess.Popen(
            [sys.executable, "-m", "strobe", *words], cwd=ROOT, stdout=file, stderr=file, env=environment
        )
    started = Up(process, output)
    try:
        wait_until("the system runs", lambda: "running; logs are in" in started.printed())
        yield started
    finally:
        process.kill()
        process.wait()


def committed(store):
    with suppress(StrobeError):
        return len(Store.open(store).state().committed)
    return 0


def wait_committed(store, more):
    wanted = committed(store) + more
    wait_until(f"{more} more snapshots", lambda: committed(store) >= wanted)


def stop_all(store):
    """Stop every program that works on a store, as on a suspended machine; return their process ids."""
    pids = [int(pid) for pid in working_on(store)]
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    return pids


def continue_all(pids):
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGCONT)


def logs(store):
    return "".join(path.read_text() for path in (store / "run" / "log").glob("*.log"))


def interrupt(started):
    started.process.send_signal(signal.SIGINT)
    return started.wait_ended()


def check_history(store):
    """Check that the log has one history, in which terms, snapshots and positions only increase; return the terms."""
    terms, newest, positions = [0], SnapshotId(0, 0, ""), {}
    for position, entry in Store.open(store).read_log():
        document = decode_entry((store / entry_name(position)).read_bytes(), str(store), position, None)
        assert document.term == terms[-1], f"entry {position} is of another term"
        if isinstance(entry, Term):
            assert entry.term == terms[-1] + 1
            terms.append(entry.term)
        elif isinstance(entry, Commit):
            snapshot = SnapshotId.parse(entry.snapshot)
            assert snapshot > newest, f"{snapshot} was committed after {newest}"
            newest = snapshot
            found = {process: record.position for process, record in entry.manifest.processes.items()}
            back = {process for process, reached in found.items() if reached < positions.get(process, 0)}
            assert not back, f"{snapshot}, at entry {position}, lies before the one before it, at {sorted(back)}"
            positions = found
    return terms[1:]


def test_S1_a_resumed_up_ends_when_a_second_one_leads(tmp_path):
    """S1: nothing of the first is committed after the term of the second, and it reports who has taken over."""
    store = tmp_path / "store"
    with up(tmp_path, "first", "ledger", store) as first:
        wait_committed(store, 3)
        stopped = stop_all(store)
        with up(tmp_path, "second", "ledger", store) as second:
            wait_committed(store, 3)
            leader = Client.of_store(str(store)).status()
            continue_all(stopped)
            assert first.wait_ended() == TakenOver.exit_code
            assert re.search(rf"another coordinator has taken over \(\S+ pid {leader.pid}, term 2\)", first.printed())
            assert not set(stopped).intersection(map(int, working_on(store)))
            wait_committed(store, 3)
            status = Client.of_store(str(store)).status()
            assert (status.pid, status.term, status.epoch) == (leader.pid, 2, leader.epoch)
            assert interrupt(second) == 0
    assert check_history(store) == [1, 2]
    check_everything(ledger.ledger, store)


def test_S1_a_sink_of_a_stopped_up_is_taken_over_when_that_has_ended(tmp_path):
    """S1, R2: the second waits for files that the first still holds; then output continues, each line once."""
    store = tmp_path / "store"
    with up(tmp_path, "first", "with_sinks", store) as first:
        wait_committed(store, 3)
        stopped = stop_all(store)
        with up(tmp_path, "second", "with_sinks", store) as second:
            wait_until("the sink to be waited for", lambda: "which must end first" in logs(store))
            continue_all(stopped)
            assert first.wait_ended() == TakenOver.exit_code
            wait_committed(store, 5)
            assert interrupt(second) == 0
    assert check_history(store) == [1, 2]
    check_everything(ledger.with_sinks, store, tmp_path)


def test_S1_a_stopped_coordinator_cannot_take_the_place_of_a_removed_entry(tmp_path):
    """It is stopped before its commit is linked. Before it continues, its position is taken, and that entry removed."""
    every, store = 16, tmp_path / "store"
    found = {}

    def stop():
        fuse.write_text(f"coordinator ENTRY_SYNCED Commit {fused.STOP}")
        wait_until("it is stopped", lambda: fuse.with_suffix(fused.STOPPED).exists())
        state = Store.open(store).state()
        found["end"], found["open"] = state.next_position, set(state.open)

    def remove():
        """Write to the log and collect, as a user's commands do."""
        opened = Store.open(store, checkpoint_every=every)
        newest = opened.resolve("latest")
        for snapshot in found["open"]:
            append_when(opened, lambda _, snapshot=snapshot: Abort(snapshot, "it takes too long", 0))
        for number in range(4 * every):
            append_when(opened, lambda state, number=number: Pin(newest, number % 2 == 0, 0))
            opened.write_checkpoint()
        collect(opened)
        assert not (store / entry_name(found["end"])).exists()
        found["committed"] = list(opened.state().committed)

    with running_with_fuse(tmp_path, "ledger", ledger.NAMES, "--interval", "0.1", every=every) as (live, fuse, _):
        live.wait_committed(3)
        assert live.take_over(stop, remove)
        live.wait_committed(3)
    state = Store.open(store).state()
    assert list(state.committed)[: len(found["committed"])] == found["committed"]
    assert found["open"]
    assert not found["open"].intersection(state.committed)
    reported = {word for line in logs(store).splitlines() if "committed" in line for word in line.split()}
    assert not {f"snapshot={snapshot}" for snapshot in found["open"]} & reported
    assert Store.open(store).verify_bytes() == []
