"""Which snapshot a rollback restores, and whether it forks, when requests and crashes coincide (R1, R2).

A fork belongs to the snapshot that it was requested with: output released since then does not prevent a rollback to
that snapshot, but it does prevent a rollback to any other.
"""

import pytest
from tests.protocol.coordinator_host import CoordinatorHost, those
from tests.protocol.rolling_back import S1, S2, chosen, crash, with_one_complete

from strobe.protocol.coordinator.messages import ChooseSnapshot, RestoreRefused, RestoreState, RestoreWanted

X, Y = "000001-00000007-coordinator", "000001-00000008-coordinator"


def choose_on_a_slow_log(host: CoordinatorHost) -> None:
    """Choose a snapshot; the log entry of its epoch waits to be written."""
    host.slow = True
    chosen(host)


@pytest.mark.parametrize("fork", [False, True])
def test_R2_a_request_during_a_rollback_forks_only_if_it_asks_to(
    fork: bool,
) -> None:
    host = with_one_complete()
    crash(host, "q")
    choose_on_a_slow_log(host)
    host.handle(RestoreWanted(X, "because", fork))
    effects = host.write()
    assert those(effects, ChooseSnapshot) == [ChooseSnapshot(X, fork)]
    assert those(effects, RestoreState) == []


@pytest.mark.parametrize("fork", [False, True])
def test_R2_a_later_request_forks_only_if_it_asks_to(fork: bool) -> None:
    host = with_one_complete()
    host.handle(RestoreWanted(X, "to fork" if not fork else "to go back", not fork))
    choose_on_a_slow_log(host)
    host.handle(RestoreWanted(Y, "the later one", fork))
    assert those(host.write(), ChooseSnapshot) == [ChooseSnapshot(Y, fork)]
    host.slow = False
    chosen(host, S2)
    assert [(entry.fork, entry.reason) for entry in host.epochs()][-1] == (fork, "the later one")


def test_R2_after_a_refused_fork_the_newest_is_restored_without_fork() -> None:
    host = with_one_complete()
    host.handle(RestoreWanted(X, "because", fork=True))
    crash(host, "q")
    assert those(host.handle(RestoreRefused("it is corrupt")), ChooseSnapshot) == [ChooseSnapshot(None, fork=False)]
    chosen(host)
    assert [entry.fork for entry in host.epochs()] == [False]


def test_a_fork_from_the_newest_stays_one_despite_an_automatic_rollback() -> None:
    host = with_one_complete()
    crash(host, "q")
    host.handle(RestoreWanted(None, "because", fork=True))
    assert those(chosen(host), ChooseSnapshot) == [ChooseSnapshot(None, fork=True)]


def test_a_request_for_the_newest_does_not_change_a_pending_rollback() -> None:
    host = with_one_complete()
    host.handle(RestoreWanted(X, "because", fork=True), RestoreWanted(None, "any will do"))
    chosen(host)
    assert [(entry.fork, entry.reason) for entry in host.epochs()] == [(True, "because")]


def test_a_commit_that_overtakes_a_restarted_fork_is_restored_as_a_fork() -> None:
    """S2 was committed in the fork, whose output continues in a file of its own."""
    host = with_one_complete()
    host.handle(RestoreWanted(str(S1), "because", fork=True))
    chosen(host)
    host.drained(2, "p", "q", "r")
    crash(host, "q")
    choose_on_a_slow_log(host)
    host.lifecycle.rollback.committed(str(S2), host.lifecycle.view)
    assert those(host.write(), ChooseSnapshot) == [ChooseSnapshot(str(S2), fork=True)]
    assert [entry.fork for entry in host.epochs()] == [True, True]
