"""Links of a live system that are reset, blocked or slow, and strangers at its ports: nothing is lost."""

import random
import time

import pytest
from tests.live.support import ledger
from tests.live.support.checks import check_everything
from tests.live.support.harness import LEDGER, running, wait_until
from tests.live.support.strangers import garbage, throw

LINKS = [f"{p}->{q}" for p in ledger.NAMES for q in ledger.NAMES if p != q]
THROWS = 140


@pytest.mark.parametrize("name", ["ledger", "ledger_unordered"])
def test_links_that_are_reset_repeatedly_resume(tmp_path, name):
    """M2, R1: a reset is not a crash; frames are sent again byte for byte, and received once."""
    with running(tmp_path, f"{LEDGER}:{name}", ledger.NAMES, "--interval", "0.1", through_proxy=True) as live:
        live.wait_running()
        wait_until("every link", lambda: set(LINKS) <= set(live.proxy.names()), between=live.tick)
        chance = random.Random(name)

        def reset_some(status):
            live.proxy.reset(*chance.sample(LINKS, 3))
            time.sleep(chance.uniform(0, 0.04))
            return live.proxy.resets >= 60 and all(channel.reconnects for channel in status.channels)

        live.wait("60 resets, and every link to have come back", reset_some)
        live.wait_committed(2)
        assert live.wait_running().epoch == 1
        ledger.assert_exactly_once(getattr(ledger, name), live.last_snapshot())
    check_everything(getattr(ledger, name), tmp_path / "store")


def test_control_connections_that_are_reset_cost_no_rollback(tmp_path):
    """E7: a node that reconnects receives what it has missed."""
    with running(tmp_path, f"{LEDGER}:ledger", ledger.NAMES, "--interval", "0.05", through_proxy=True) as live:
        live.wait_running()
        chance = random.Random(7)
        for _ in range(30):
            live.proxy.reset(f"control {chance.choice(ledger.NAMES)}")
            live.tick()
            time.sleep(chance.uniform(0, 0.1))
        live.wait_running()
        live.wait_committed(3)
        assert live.epoch() == 1
    check_everything(ledger.ledger, tmp_path / "store")


def test_a_node_replaces_a_dead_control_connection_and_keeps_its_state(tmp_path):
    """Such a connection is dead without an error at either end, though new ones would work."""
    with running(
        tmp_path, f"{LEDGER}:ledger", ledger.NAMES, "--interval", "0.1", "--silence", "1.5", through_proxy=True
    ) as live:
        live.wait_running()
        live.wait_committed(2)
        live.proxy.swallow("control c")
        wait_until("c to notice", lambda: "has answered none of" in live.log("c"), seconds=15, between=live.tick)
        live.wait_running()
        live.wait_committed(3)
        assert live.epoch() == 1
        assert live.gone == []
    check_everything(ledger.ledger, tmp_path / "store")


def test_E6_a_blocked_link_aborts_snapshots_and_nothing_else(tmp_path):
    """E6: snapshots that wait for it time out and are retried; when it opens, all continue without a rollback."""
    with running(
        tmp_path, f"{LEDGER}:ledger", ledger.NAMES, "--interval", "0.1", "--timeout", "0.5", through_proxy=True
    ) as live:
        live.wait_running()
        live.wait_committed(2)
        live.proxy.block("a->b")
        wait_until("a snapshot that times out", lambda: live.aborted("timed out"), between=live.tick)
        live.wait_progress()
        live.proxy.unblock()
        live.wait_committed(3)
        assert live.epoch() == 1
    check_everything(ledger.ledger, tmp_path / "store")


def test_a_crawling_link_delays_snapshots_and_loses_nothing(tmp_path):
    """C7: the marker waits behind the messages in flight; processes continue, and these messages are channel state."""
    with running(tmp_path, f"{LEDGER}:ledger", ledger.NAMES, "--interval", "0.2", through_proxy=True) as live:
        live.wait_running()
        live.proxy.slow(100_000, "a->b", "b->c")
        live.wait_committed(3)
        live.wait_progress()
        live.proxy.slow(None, "a->b", "b->c")
        live.wait_committed(2)
        assert live.epoch() == 1
    check_everything(ledger.ledger, tmp_path / "store")


def test_strangers_and_garbage_at_every_port_are_rejected_and_counted(tmp_path):
    """Foreign data ends only its own connection; the run continues, and reports how many it has rejected."""
    with running(tmp_path, f"{LEDGER}:ledger", ledger.NAMES, "--interval", "0.1") as live:
        status = live.wait_running()
        live.wait_committed(1)
        nodes = [process.address for process in status.processes]
        chance = random.Random(11)
        for _ in range(THROWS):
            for address in (*nodes, status.listen):
                throw(address, garbage(chance))
            live.tick()
        live.wait(
            "each throw to be counted",
            lambda s: s.rejected >= THROWS * 3 // 4 and all(sum(p.rejected.values()) >= THROWS for p in s.processes),
        )
        live.wait_progress()
        live.wait_committed(2)
        assert live.epoch() == 1
        assert live.gone == []
    check_everything(ledger.ledger, tmp_path / "store")
