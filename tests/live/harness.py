"""A live system for tests: real processes, watched over the coordinator's API. Waiting is polling with a deadline."""

import os
import signal
import time
from contextlib import contextmanager
from pathlib import Path

from strobe.causality.proof import verify
from strobe.cli.supervisor import Supervisor
from strobe.errors import TransportError
from strobe.storage import Store

LEDGER = Path(__file__).parent / "ledger.py"
DEADLINE_S = 60.0


def wait_until(what, check, seconds=DEADLINE_S, between=lambda: None):
    """Return the first true value of `check()`; fail by name where none comes."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        between()
        found = check()
        if found:
            return found
        time.sleep(0.02)
    raise AssertionError(f"waited {seconds:g} s in vain for: {what}")


class Live:
    """A running system; children that end are started again while something is waited for."""

    def __init__(self, supervisor):
        self.supervisor = supervisor
        self.store = supervisor.store
        self.gone = []

    def tick(self):
        self.gone += self.supervisor.tick()

    def status(self):
        """Return the status, or None while no coordinator answers."""
        self.tick()
        try:
            return self.supervisor.client.status()
        except TransportError:
            return None

    def wait(self, what, check, seconds=DEADLINE_S):
        """Wait until `check(status)` is true, and return that status."""
        try:
            return wait_until(what, lambda: (s := self.status()) and check(s) and s, seconds)
        except AssertionError as error:
            raise AssertionError(f"{error}\n{self.logs()}") from None

    def wait_committed(self, more):
        """Wait for `more` snapshots to commit from now on."""
        before = len(Store.open(self.store).list())
        wait_until(
            f"{more} more snapshots", lambda: len(Store.open(self.store).list()) >= before + more, between=self.tick
        )

    def wait_running(self):
        return self.wait("everybody running", lambda s: s.settled and all(p.state == "running" for p in s.processes))

    def kill(self, name, number=signal.SIGKILL):
        assert self.supervisor.kill(name, number), f"{name} is not running"

    def last_snapshot(self):
        """Take one more snapshot, and return it, loaded and verified."""
        taken = self.wait_taken()
        snapshot = Store.open(self.store).load(taken)
        assert verify(snapshot).holds
        return snapshot

    def wait_taken(self):
        def take():
            self.tick()
            try:
                taken = self.supervisor.client.take(wait=True, timeout_s=20.0)
            except TransportError:
                return None
            return taken.id if taken.outcome == "committed" else None

        return wait_until("a snapshot on demand", take)

    def logs(self):
        paths = sorted((self.store / "run" / "log").glob("*.log"))
        return "\n".join(f"--- {path.name}\n{_tail(path)}" for path in paths)


def _tail(path):
    return "\n".join(path.read_text("utf-8", "replace").splitlines()[-25:])


@contextmanager
def running(directory, system, processes, *options, environment=None):
    """Run `system` in `directory`; at the end nothing of it is left."""
    before = dict(os.environ)
    os.environ.update(environment or {})
    supervisor = Supervisor(
        system, str(directory / "store"), processes, ["--listen", "127.0.0.1:0", "--api", "127.0.0.1:0", *options]
    )
    try:
        with supervisor:
            supervisor.start()
            live = Live(supervisor)
            yield live
            supervisor.stop()
    finally:
        os.environ.clear()
        os.environ.update(before)


def verify_all(store):
    """Check the proof and every byte of every complete snapshot; return how many there are."""
    opened = Store.open(store)
    assert opened.verify_bytes() == []
    names = [name for _, name, _ in opened.list()]
    for name in names:
        verdict = verify(opened.load(name))
        assert verdict.holds, (name, verdict.findings)
    return len(names)
