"""Barriers in a live dataflow: snapshots, a SIGKILL, and a rollback that loses nothing (V3-V5, R1)."""

from pathlib import Path

import pytest
from tests.live.support import ledger
from tests.live.support.checks import check_everything, complete_snapshots, verify_all
from tests.live.support.harness import LEDGER, running, wait_until

from strobe.cli.arguments.systems import open_system
from strobe.storage.content.state_codec import decode_snapshot

EXAMPLE = Path(__file__).parents[2] / "examples" / "wordcount.py"
NAMES = ("read", "split-1", "split-2", "count-1", "count-2", "sum")


def check(system, snapshot):
    """Assert that every word read is counted once or in flight; return the number of counted words."""
    words = decode_snapshot(system, snapshot)
    assert system.conserved(words.states, words.messages) == (0, 0)
    return sum(words.states["sum"].counts.values())


@pytest.mark.parametrize("name", ["wordcount", "wordcount_unaligned", "wordcount_timed"])
def test_R1_a_dataflow_rolled_back_after_a_kill_counts_every_word_once(tmp_path, name):
    """R1, V3, V4, V5: with every kind of barriers. Aligned ones leave nothing in flight; unaligned ones do."""
    with open_system(f"{EXAMPLE}:{name}") as source:
        system = source.load()
    settings = {
        "node.window_bytes": 1000,
        "node.alignment_s": 0.01,
    }  # so that messages wait, and barriers overtake them
    with running(tmp_path, f"{EXAMPLE}:{name}", NAMES, "--interval", "0.1", settings=settings) as live:
        live.wait_running()
        live.wait_committed(3)
        if name == "wordcount_unaligned":  # not every snapshot has some, so wait for one that has
            wait_until("words in flight", lambda: live.last_snapshot().in_flight_messages, between=live.tick)
        live.kill("split-1")
        live.wait_rolled_back(1)
        live.wait_committed(2)
        snapshot = live.last_snapshot()
        assert check(system, snapshot) > 0
    assert verify_all(tmp_path / "store") >= 6
    if name == "wordcount":
        assert not any(snapshot.in_flight_messages for snapshot in complete_snapshots(tmp_path / "store"))


@pytest.mark.parametrize("name", ["diamond_aligned", "diamond_unaligned", "diamond_timed"])
def test_E2_an_operator_leaves_and_rejoins_a_dataflow_under_barriers(tmp_path, name):
    """E2, V3, V4, V5: each snapshot is of one view, and has every message once; blocked inputs are resumed."""
    settings = {"node.window_bytes": 4000, "node.alignment_s": 0.01}
    with running(tmp_path, f"{LEDGER}:{name}", ledger.DIAMOND, "--interval", "0.02", settings=settings) as live:
        live.wait_running()
        live.wait_committed(2)
        for _ in range(2):
            live.client.leave("c")
            live.wait(
                "c to be out", lambda s: s.settled and {process.name for process in s.processes} == {"a", "b", "d"}
            )
            wait_until("its program to end", lambda: live.supervisor.pid("c") is None, between=live.tick)
            live.wait_committed(1)
            live.start_again("c")
            live.wait(
                "c to be in", lambda s: s.settled and [process.state for process in s.processes] == ["running"] * 4
            )
            live.wait_committed(1)
        live.wait_progress()
        assert live.epoch() == 1
        assert {code for _, code in live.gone} == {0}
    views = {snapshot.view.number: set(snapshot.fragments) for snapshot in complete_snapshots(tmp_path / "store")}
    assert set(views) == {1, 2, 3, 4, 5}
    assert all(("c" in members) == (number % 2 == 1) for number, members in views.items())
    check_everything(getattr(ledger, name), tmp_path / "store")


@pytest.mark.parametrize("name", ["with_sinks_aligned", "with_sinks_overtaking", "with_sinks_timed"])
def test_R2_the_output_of_a_dataflow_is_released_once_despite_kills(tmp_path, name):
    """R2, R1, V3, V4, V5: output of an operator and of the last process, byte for byte what the snapshots cover."""
    output = tmp_path / "output"
    output.mkdir()
    settings = {"node.window_bytes": 4000, "node.alignment_s": 0.01}
    environment = {"STROBE_TEST_OUTPUT": str(output)}
    options = ("--interval", "0.05")
    with running(
        tmp_path, f"{LEDGER}:{name}", ledger.DIAMOND, *options, settings=settings, environment=environment
    ) as live:
        live.wait_running()
        for victim in ("d", "a"):
            live.wait_committed(2)
            epoch = live.epoch()
            live.kill(victim)
            live.wait_rolled_back(epoch)
        live.wait_committed(2)
    checked = check_everything(getattr(ledger, name), tmp_path / "store", output)
    assert checked.lines > 0
