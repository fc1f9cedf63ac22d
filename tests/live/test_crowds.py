"""Half-open connections at every port of a live system: it keeps enough descriptors, and snapshots continue (E14)."""

import subprocess
from contextlib import ExitStack

import pytest
from tests.live.support import ledger
from tests.live.support.checks import check_everything
from tests.live.support.harness import LEDGER, running, wait_until
from tests.live.support.strangers import HALF_OPEN, crowd

from strobe.cli.live.supervisor import PROGRAM

DESCRIPTORS = 256
"""Fewer than there are connections. With a higher limit, more connections would have the same effect."""
LIMITED = ("sh", "-c", f'ulimit -n {DESCRIPTORS} && exec "$@"', "sh", *PROGRAM)
CONNECTIONS = 1000


@pytest.fixture(scope="module")
def live(tmp_path_factory):
    directory = tmp_path_factory.mktemp("crowds")
    with running(
        directory, f"{LEDGER}:ledger", ledger.NAMES, "--interval", "0.1", program=LIMITED, popen=subprocess.Popen
    ) as live:
        live.wait_running()
        live.wait_committed(1)
        yield live
        assert live.epoch() == 1
        assert live.gone == []
    check_everything(ledger.ledger, directory / "store")


@pytest.mark.parametrize("way", HALF_OPEN)
def test_E14_half_open_requests_stop_neither_snapshots_nor_answers(live, way):
    """E14: a thousand clients that never finish their request, with descriptors for a quarter of them."""
    with crowd(live.client.api, CONNECTIONS, way) as pressing:
        wait_until("some of them to be closed", lambda: pressing.closed >= CONNECTIONS // 2, between=pressing.press)
        live.wait_committed(2, between=pressing.press)
        live.wait("an answer", lambda status: status.settled)
        live.wait_taken()
    assert live.aborted("open files") == []


def test_E14_half_open_connections_of_nodes_and_links_stop_no_snapshots(live):
    """E14: the ports for nodes and links are occupied as well, all at the same time."""
    status = live.status()
    places = [status.listen, *(process.address for process in status.processes)]
    with ExitStack() as stack:
        crowds = [stack.enter_context(crowd(place, CONNECTIONS // 4)) for place in places]

        def press():
            for connections in crowds:
                connections.press()

        wait_until(
            "some at each port to be closed",
            lambda: all(connections.closed > 0 for connections in crowds),
            between=press,
        )
        live.wait_committed(2, between=press)
        live.wait("an answer", lambda status: status.settled)
    live.wait_progress()
