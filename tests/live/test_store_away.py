"""Live: the store is moved away or replaced by another one; no program starts over from an empty state (E7)."""

import subprocess
import sys

import pytest
from tests.live.support import ledger
from tests.live.support.checks import check_everything
from tests.live.support.harness import DEADLINE_S, LEDGER, running, wait_until
from tests.live.support.stores import IN_ITS_PLACE, copy_running, moved_away

from strobe.cli.live.child import COORDINATOR
from strobe.errors import TransportError
from strobe.runtime.api.client import Client
from strobe.storage import Store


def store_troubles(live):
    status = live.status()
    return [one.problem for one in status.troubles if one.kind == "store"] if status else []


@pytest.mark.parametrize("what", IN_ITS_PLACE)
def test_E7_a_coordinator_killed_while_its_store_is_away_waits_for_it(tmp_path, what):
    """E7, R1: it reports what it waits for; processes continue; a restarted node takes part when the store is back."""
    with running(tmp_path, f"{LEDGER}:ledger", ledger.NAMES, "--interval", "0.1", "--trace", "ordinals") as live:
        live.wait_running()
        live.wait_committed(2)
        identity = Store.open(live.store).header.store
        pids = {name: live.supervisor.pid(name) for name in ledger.NAMES}
        with moved_away(live.store, what):
            live.kill(COORDINATOR)
            live.wait_ended(COORDINATOR)
            live.kill("b")
            live.wait_ended("b")
            waiting = f"waiting for the store {live.store} (identity {identity}): the path {IN_ITS_PLACE[what]}"
            wait_until("the coordinator to report it", lambda: store_troubles(live) == [waiting])
            assert live.supervisor.starts("b") == 2
            assert live.status().processes == []
            with pytest.raises(TransportError, match="the coordinator is not ready yet: waiting for the store"):
                live.client.take()
        live.wait_committed(2)
        status = live.wait_running()
        assert status.epoch == 2
        assert status.rollbacks[-1].restored is not None
        assert all(live.supervisor.pid(name) == pid for name, pid in pids.items() if name != "b")
        assert store_troubles(live) == []
        ledger.assert_exactly_once(ledger.ledger, live.last_snapshot())
    check_everything(ledger.ledger, tmp_path / "store")


@pytest.mark.parametrize("what", IN_ITS_PLACE)
def test_E7_a_running_system_continues_when_its_store_is_back(tmp_path, what):
    """E7: no program ends, and nothing is written in its place."""
    with running(tmp_path, f"{LEDGER}:ledger", ledger.NAMES, "--interval", "0.1", "--trace", "full") as live:
        live.wait_running()
        live.wait_committed(2)
        with moved_away(live.store, what):
            wait_until("the coordinator to report it", lambda: IN_ITS_PLACE[what] in "".join(store_troubles(live)))
            live.wait("processes to go on", lambda s: all(one.events_per_s for one in s.processes))
        live.wait_committed(2)
        assert live.epoch() == 1
        assert [name for name, _ in live.gone] == []
    check_everything(ledger.ledger, tmp_path / "store")


@pytest.mark.parametrize("killed", [False, True], ids=["running", "killed"])
def test_S1_without_its_log_a_coordinator_does_not_start_from_nothing(tmp_path, killed):
    """S1: running or restarted, it reports this and writes nothing; it continues when the log is back."""
    with running(tmp_path, f"{LEDGER}:ledger", ledger.NAMES, "--interval", "0.1") as live:
        live.wait_running()
        live.wait_committed(2)
        log = tmp_path / "store" / "log"
        log.rename(tmp_path / "log")
        log.mkdir()
        if killed:
            live.kill(COORDINATOR)
        reports = "has lost entries of its log"
        wait_until("the coordinator to report it", lambda: reports in "".join(store_troubles(live)))
        assert list(log.iterdir()) == []
        log.rmdir()
        (tmp_path / "log").rename(log)
        live.wait_committed(2)
    check_everything(ledger.ledger, tmp_path / "store")


def test_E7_up_reports_that_it_waits_and_continues_from_the_newest(tmp_path):
    """E7: as a user does it: `strobe up --create`, the store moved away, the coordinator killed, the store back."""
    store = tmp_path / "store"
    command = [sys.executable, "-m", "strobe", "up", f"{LEDGER}:ledger", "--store", store, "--interval", "0.2"]
    printed = tmp_path / "printed"
    with printed.open("wb") as file, subprocess.Popen([*command, "--create"], stderr=file, stdout=file) as up:
        try:
            wait_until("snapshots", lambda: (store / "strobe.json").exists() and len(Store.open(store).list()) > 1)
            pid = Client.of_store(str(store)).status().pid
            with moved_away(store, "empty"):
                subprocess.run(["kill", "-9", str(pid)], check=True)
                wait_until("the report", lambda: b"waiting for the store" in printed.read_bytes())
            before = len(Store.open(store).list())
            wait_until("more snapshots", lambda: len(Store.open(store).list()) > before + 1)
            up.terminate()
            assert up.wait(DEADLINE_S) == 0
        finally:
            up.kill()
    text = printed.read_text()
    assert "the path is empty" in text
    assert "rolled back" not in text
    check_everything(ledger.ledger, store)


def test_S1_an_older_copy_of_the_store_is_waited_out(tmp_path):
    """S1, E7: a restarted coordinator does not continue from it, since `strobe up` knows the newest entry."""
    with running(tmp_path, f"{LEDGER}:ledger", ledger.NAMES, "--interval", "0.1") as live:
        live.wait_running()
        live.wait_committed(2)
        copy_running(live.store, tmp_path / "copy")
        live.wait_committed(5)
        live.wait("the newest entries to be known", lambda s: s.last_entry is not None)
        pids = {name: live.supervisor.pid(name) for name in ledger.NAMES}
        live.store.rename(tmp_path / "real")
        (tmp_path / "copy").rename(live.store)
        before = len(list((live.store / "log").iterdir()))
        live.kill(COORDINATOR)
        live.wait_ended(COORDINATOR)
        wait_until("the report", lambda: "holds an older copy of that store" in "".join(store_troubles(live)))
        assert len(list((live.store / "log").iterdir())) == before
        live.store.rename(tmp_path / "copy")
        (tmp_path / "real").rename(live.store)
        live.wait_committed(2)
        assert live.epoch() == 1
        assert {name: live.supervisor.pid(name) for name in ledger.NAMES} == pids
    check_everything(ledger.ledger, tmp_path / "store")


def test_S1_a_running_coordinator_reports_an_older_copy_and_waits(tmp_path):
    with running(tmp_path, f"{LEDGER}:ledger", ledger.NAMES, "--interval", "0.1") as live:
        live.wait_running()
        live.wait_committed(2)
        copy_running(live.store, tmp_path / "copy")
        live.wait_committed(5)
        live.store.rename(tmp_path / "real")
        (tmp_path / "copy").rename(live.store)
        before = len(list((live.store / "log").iterdir()))
        wait_until("the report", lambda: "holds an older copy of that store" in "".join(store_troubles(live)))
        assert len(list((live.store / "log").iterdir())) == before
        live.store.rename(tmp_path / "copy")
        (tmp_path / "real").rename(live.store)
        live.wait_committed(2)
        assert [name for name, _ in live.gone] == []
    check_everything(ledger.ledger, tmp_path / "store")


@pytest.mark.parametrize("starts", [1, 2], ids=["later-epoch", "same-epoch"])
def test_S1_no_process_continues_from_the_state_of_an_older_copy(tmp_path, starts):
    """S1, R1: a system ran on an older copy; when the real store is back, all restart from its newest snapshot.

    The epoch of the copy has the same number as the real store's, or a higher one.
    """
    interval = ("--interval", "0.1")
    real, copy = tmp_path / "real", tmp_path / "copy"
    for start in range(starts):
        with running(tmp_path, f"{LEDGER}:ledger", ledger.NAMES, *interval) as live:
            live.wait_running()
            live.wait_committed(2)
            if start == 0:
                copy_running(live.store, copy)
            live.wait_committed(20)
    live.store.rename(real)
    copy.rename(live.store)
    with running(tmp_path, f"{LEDGER}:ledger", ledger.NAMES, *interval) as live:
        live.wait_running()
        live.wait_committed(1)
        pids = {name: live.supervisor.pid(name) for name in ledger.NAMES}
        live.store.rename(copy)
        real.rename(live.store)
        newest = Store.open(live.store).list()[-1][1]
        wait_until("the coordinator to end", lambda: (COORDINATOR, 6) in live.gone, between=live.tick)
        status = live.wait_rolled_back(starts)
        assert status.rollbacks[-1].restored == newest
        live.wait_committed(2)
        assert not set(pids.items()) & {(name, live.supervisor.pid(name)) for name in ledger.NAMES}
        assert {(name, 1) for name in ledger.NAMES} <= set(live.gone)
        ledger.assert_exactly_once(ledger.ledger, live.last_snapshot())
    check_everything(ledger.ledger, tmp_path / "store")
