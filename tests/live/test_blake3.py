"""Channels hashed by BLAKE3 between real processes: snapshots, their proofs, and a rollback (P1, R1)."""

import shutil

from tests.live.support import ledger
from tests.live.support.checks import check_everything
from tests.live.support.harness import LEDGER, running

from strobe.storage import Store

PAIR = ("a", "b")
SYSTEM = """
hash = "blake3"
messages = ["ledger:Note"]
[process.a]
class = "ledger:Clerk"
[process.b]
class = "ledger:Clerk"
[[channel]]
from = "a"
to = "b"
[[channel]]
from = "b"
to = "a"
"""


def test_P1_blake3_chains_are_proved_and_continue_after_a_kill(tmp_path):
    """P1, R1: the hashes of both ends match in every snapshot, also in the epoch after a restore."""
    shutil.copy(LEDGER, tmp_path)
    (tmp_path / "system.toml").write_text(SYSTEM)
    system = ledger.wired({name: ledger.Clerk() for name in PAIR})
    with running(tmp_path, str(tmp_path / "system.toml"), PAIR, "--interval", "0.1") as live:
        live.wait_running()
        live.wait_committed(3)
        live.kill("b")
        status = live.wait_rolled_back(1)
        assert status.rollbacks[-1].restored is not None
        live.wait_committed(3)
        snapshot = live.last_snapshot()
        assert ledger.assert_exactly_once(system, snapshot) > 0
    assert snapshot.id.epoch == 2
    manifests = [manifest for _, _, manifest in Store.open(tmp_path / "store").list()]
    assert {channel.hash for manifest in manifests for channel in manifest.view.channels} == {"blake3"}
    ends = [end for manifest in manifests for record in manifest.processes.values() for end in record.sent.values()]
    assert {len(end.hash) for end in ends} == {64}
    check_everything(system, tmp_path / "store")
