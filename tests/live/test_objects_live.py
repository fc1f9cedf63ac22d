"""Real processes that write to an object store over HTTP: crashes, a rollback, commands of other programs."""

from tests.live.support import ledger
from tests.live.support.checks import verify_all
from tests.live.support.harness import LEDGER, running

from strobe.cli import main
from strobe.storage import Store, collect
from strobe.storage.files.object_store import RETRIES_MAX


def test_S1_R1_a_live_system_keeps_its_snapshots_in_an_object_store(tmp_path, objects):
    """S1, R1: a node and the coordinator are killed, and the object store fails for a while; nothing is lost."""
    url = objects.new_url()
    environment = {"XDG_STATE_HOME": str(tmp_path / "state")}
    options = ("--interval", "0.2")
    with running(tmp_path, f"{LEDGER}:keyed", ledger.NAMES, *options, environment=environment, store=url) as live:
        live.wait_running()
        live.wait_committed(2)
        live.kill("b")
        status = live.wait_rolled_back(1)
        assert status.rollbacks[-1].restored is not None
        live.wait_committed(1)
        live.kill("coordinator")
        live.wait_committed(1)
        # An outage: more refusals than one request is retried.
        objects.fail("PUT", url.removeprefix("s3:/"), "refuse", times=2 * (RETRIES_MAX + 1))
        live.wait_committed(2)
        assert live.wait_running().epoch == 2
        assert main(["snapshot", "take", "--store", url]) == 0
        assert ledger.assert_exactly_once(ledger.keyed, live.last_snapshot()) > 0
        assert {path.name for path in (tmp_path / "state" / "strobe").glob("*/run/log/*")} >= {
            "a.log",
            "coordinator.log",
        }
    store = Store.open(url)
    collect(store)
    assert verify_all(url) >= 5
    assert not (tmp_path / "store").exists()
