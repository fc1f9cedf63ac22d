"""Barriers live, on a dataflow of real processes: snapshots, a SIGKILL, rollback that loses nothing (V3-V5, R1)."""

from pathlib import Path

import pytest
from tests.live.harness import running, verify_all

from strobe.cli.systems import open_system
from strobe.storage.states import decode_snapshot

EXAMPLE = Path(__file__).parents[2] / "examples" / "wordcount.py"
NAMES = ("read", "split-1", "split-2", "count-1", "count-2", "sum")


def check(system, snapshot):
    """Every word that was read has been counted once, or is on its way."""
    states, messages = decode_snapshot(system, snapshot)
    assert system.conserved(states, messages) == (0, 0)
    return sum(states["sum"].counts.values())


@pytest.mark.parametrize("name", ["wordcount", "wordcount_unaligned", "wordcount_timed"])
def test_R1_a_dataflow_goes_back_after_a_kill_and_counts_every_word_once(tmp_path, name):
    """R1, V3, V4, V5: whichever barriers there are."""
    with open_system(f"{EXAMPLE}:{name}") as source:
        system = source.load()
    settings = {"node.window_bytes": 1000, "node.alignment_s": 0.01}  # so that something waits, and is overtaken
    with running(tmp_path, f"{EXAMPLE}:{name}", NAMES, "--interval", "0.1", settings=settings) as live:
        live.wait_running()
        live.wait_committed(3)
        live.kill("split-1")
        live.wait("a rollback", lambda s: s.epoch == 2 and s.settled)
        live.wait_committed(2)
        snapshot = live.last_snapshot()
        assert check(system, snapshot) > 0
    assert verify_all(tmp_path / "store") >= 6
