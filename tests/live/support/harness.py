"""A live system for tests: real processes, watched through the coordinator's API by polling with a deadline."""

import os
import secrets
import signal
import sys
import time
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from subprocess import DEVNULL
from types import SimpleNamespace
from unittest.mock import patch

from tests.live.support import forking, fused
from tests.live.support import ledger as clerks
from tests.live.support.footprints import Footprint
from tests.live.support.proxy import Proxy

from strobe.causality.proof import verify
from strobe.cli.live import child as children
from strobe.cli.live import judge_worker
from strobe.cli.live.child import COORDINATOR, Child
from strobe.cli.live.child_log import ChildLog
from strobe.cli.live.supervisor import PROGRAM, ChildFailed, Supervisor, _with_options
from strobe.errors import StrobeError, TakenOver, TransportError
from strobe.runtime.api.client import Client
from strobe.storage import Store

LEDGER = Path(__file__).parent / "ledger.py"
ROOT = Path(__file__).parents[3]
DEADLINE_S = 60.0
RESTART_S_MAX = 0.1
MANY_ROLLBACKS = {"coordinator.rollbacks_max": 100_000}


def wait_until(what, check, seconds=DEADLINE_S, between=lambda: None):
    """Return the first true value of `check()`; at the deadline, fail with `what`."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        between()
        found = check()
        if found:
            return found
        time.sleep(0.02)
    raise AssertionError(f"waited {seconds:g} s in vain for: {what}")


class Live:
    """A running system; waiting for something also restarts children that have ended."""

    def __init__(self, supervisor, proxy, names):
        self.supervisor = supervisor
        self.proxy = proxy
        self.names = tuple(names)
        # Tests on local disk look into the directory.
        self.store = supervisor.store if "://" in supervisor.store else Path(supervisor.store)
        self.client = supervisor.client
        self.gone = []
        # How many times the coordinator has yet to end because another one has taken over; it is restarted then.
        self.takeovers = 0

    def tick(self):
        try:
            self.gone += [(one.name, one.code) for one in self.supervisor.tick()]
        except ChildFailed as failed:
            if failed.exit_code != TakenOver.exit_code or not self.takeovers:
                raise
            self.takeovers -= 1

    def status(self):
        """Return the status, or None while no coordinator answers; start departed processes that are needed again."""
        self.tick()
        try:
            status = self.client.status()
        except TransportError:
            return None
        self.supervisor.note_status(status)
        for process in status.processes:
            if process.state in ("missing", "restarting"):
                self.supervisor.needed(process.name)
        return status

    def epoch(self):
        """Return the epoch, as soon as a coordinator answers."""
        return self.wait("an answer", lambda s: True).epoch

    def process(self, name):
        """Return the status of one process, or None."""
        status = self.status()
        return next((one for one in status.processes if one.name == name), None) if status else None

    def wait(self, what, check, seconds=DEADLINE_S):
        """Wait until `check(status)` is true, and return that status."""
        try:
            return wait_until(what, lambda: (s := self.status()) and check(s) and s, seconds)
        except AssertionError as error:
            raise AssertionError(f"{error}\n{self.logs()}") from None

    def committed(self):
        """Return how many snapshots have been committed, including removed ones."""
        state = Store.open(self.store).state()
        return len(state.committed) + len(state.removed)

    def wait_committed(self, more, between=lambda: None):
        """Wait for `more` snapshots to commit from now on."""
        before = self.committed()

        def go_on():
            between()
            self.tick()

        try:
            wait_until(f"{more} more snapshots", lambda: self.committed() >= before + more, between=go_on)
        except AssertionError as error:
            raise AssertionError(f"{error}\n{self.logs()}") from None

    def wait_running(self):
        return self.wait("everybody running", lambda s: s.settled and all(p.state == "running" for p in s.processes))

    def wait_rolled_back(self, epoch):
        """Wait until a later epoch than `epoch` runs."""
        return self.wait("a rollback", lambda s: s.epoch > epoch and s.settled and not s.rolling_back)

    def wait_progress(self, more=100):
        """Wait until every process has had `more` events from now on."""
        before = {process.name: process.position for process in self.wait_running().processes}
        return self.wait(
            "events of everybody",
            lambda s: all(one.position >= before.get(one.name, 0) + more for one in s.processes),
        )

    def kill(self, name, number=signal.SIGKILL):
        assert self.supervisor.kill(name, number), f"{name} is not running"

    def take_over(self, stop=None, meanwhile=lambda: None):
        """Stop the coordinator, let another one take over, kill that, and continue the first one: it must end.

        Return False if no coordinator led. `stop` may stop it in another way. `meanwhile` runs before it continues.
        """
        status = self.status()
        first = self._child(COORDINATOR)
        if status is None or status.pid != first.pid:
            return False
        (stop or (lambda: self.kill(COORDINATOR, signal.SIGSTOP)))()
        led = Store.open(self.store).state().term
        if not led.coordinator.endswith(f" pid {first.pid}"):
            self.kill(COORDINATOR, signal.SIGCONT)  # it was starting, and did not lead yet
            return False
        self.takeovers += 1
        elsewhere = {"--listen": "127.0.0.1:0", "--api": "127.0.0.1:0"}
        log = ChildLog(self.supervisor.logs / "second.log", lambda: None)
        log.open()
        second = Child("second", first.program, _with_options(first.arguments, elsewhere), log)
        second.start(self.supervisor._lifeline)
        try:
            wait_until("another one to lead", lambda: Store.open(self.store).state().term.term > led.term)
            meanwhile()
        finally:
            second.process.kill()
            second.process.wait()
            log.close()
            self.kill(COORDINATOR, signal.SIGCONT)
        wait_until("the first to end by itself", lambda: not self.takeovers, between=self.tick)
        return True

    def wait_ended(self, name):
        """Wait until a program that was killed has ended, without restarting it."""
        self._child(name).process.wait(DEADLINE_S)

    def end(self, name):
        """Kill a program, and do not start it again."""
        self.kill(name)
        self._child(name).ended = True

    def start_again(self, name):
        """Start a program that has ended, as a new run of it, which joins if its process has left."""
        child = self._child(name)
        if name != COORDINATOR:
            child.arguments[child.arguments.index("--run") + 1] = secrets.token_hex(8)
        child.ended = False

    @contextmanager
    def replaced(self, name):
        """Wait until a stopped program is missed, and start another one in its place; yield the first one's process."""
        self.wait(
            f"{name} to be missed", lambda s: any(one.name == name and one.state == "missing" for one in s.processes)
        )
        first = self._child(name).process
        try:
            self.supervisor.add_node(name, self.supervisor.listen)
            yield first
        finally:
            first.kill()
            first.wait()

    def judge_pid(self):
        """Return the process id of the coordinator's judge, or None while there is none."""
        coordinator = self.supervisor.pid(COORDINATOR)
        with suppress(OSError):
            for pid in Path(f"/proc/{coordinator}/task/{coordinator}/children").read_text().split():
                if judge_worker.__name__.encode() in Path(f"/proc/{pid}/cmdline").read_bytes():
                    return int(pid)
        return None

    def _child(self, name):
        return self.supervisor._children[name]

    def aborted(self, words=""):
        """Return the aborted snapshots in the status whose reason contains `words`."""
        status = self.status()
        return [one for one in (status.finished if status else []) if one.outcome == "aborted" and words in one.reason]

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
                taken = self.client.take(wait=True, timeout_s=20.0)
            except StrobeError:
                return None
            return taken.id if taken.outcome == "committed" else None

        try:
            return wait_until("a snapshot on demand", take)
        except AssertionError as error:
            raise AssertionError(f"{error}\n{self.logs()}") from None

    def wait_released(self, system, snapshot, output):
        """Wait until the output that `snapshot` covers is released, which happens after the commit."""
        for name, (position, *_) in clerks.covered_by(system, snapshot).items():
            path = output / f"{name}.jsonl"
            wait_until(
                f"the release of {path}",
                lambda path=path, size=position: path.exists() and path.stat().st_size >= size,
                between=self.tick,
            )

    def footprints(self):
        """Return the current resources of each process of the system."""
        pids = {name: self.supervisor.pid(name) for name in (*self.names, COORDINATOR)}
        return {name: Footprint.of(pid) for name, pid in pids.items() if pid is not None}

    def log(self, name):
        return (self.supervisor.logs / f"{name}.log").read_text("utf-8", "replace")

    def logs(self):
        paths = sorted(self.supervisor.logs.glob("*.log"))
        return "\n".join(f"--- {path.name}\n{_tail(path)}" for path in paths)


def _tail(path):
    return "\n".join(path.read_text("utf-8", "replace").splitlines()[-25:])


@contextmanager
def running(
    directory,
    system,
    processes,
    *options,
    environment=None,
    settings=None,
    through_proxy=False,
    program=PROGRAM,
    store=None,
    popen=forking.Forked,
    shared=(),
):
    """Run `system` in `directory`, or on the store with that URL; no program is left running at the end.

    `settings` are those of system.toml, as table.key. Killed programs are restarted sooner than usual. `popen` starts
    programs. Each sequence of `shared` has further processes, which share one program.
    """
    chosen = [word for key, value in (settings or {}).items() for word in ("--set", f"{key}={value}")]
    addresses = ["--listen", "127.0.0.1:0", "--api", "127.0.0.1:0"]
    with ExitStack() as stack:
        stack.enter_context(patch.dict(os.environ, environment or {}))
        stack.enter_context(patch.object(children, "RESTART_S_MAX", RESTART_S_MAX))
        stack.enter_context(patch.object(children, "subprocess", SimpleNamespace(Popen=popen, DEVNULL=DEVNULL)))
        proxy = stack.enter_context(Proxy()) if through_proxy else None
        # Behind a proxy, nodes are started when the proxy knows the coordinator's address.
        at_once = [] if proxy else processes
        Store.open_or_create(store or directory / "store")
        supervisor = Supervisor(
            system, store or str(directory / "store"), at_once, [*addresses, *chosen, *options], program, shared=shared
        )
        stack.enter_context(supervisor)
        supervisor.start()
        supervisor.client = Client(supervisor.client.api, timeout_s=5.0)
        live = Live(supervisor, proxy, [*processes, *(name for names in shared for name in names)])
        if proxy is not None:
            listen = proxy.before(supervisor.listen)
            for name in processes:
                supervisor.add_node(name, listen)
        yield live
        supervisor.stop()


@contextmanager
def running_with_fuse(directory, system, processes, *options, every=None):
    """Run a system of the ledger whose programs have a fuse; yield it, its fuse file, and its output directory."""
    output, fuse = directory / "output", directory / "fuse"
    output.mkdir()
    environment = {
        "STROBE_TEST_OUTPUT": str(output),
        fused.VARIABLE: str(fuse),
        "PYTHONPATH": f"{ROOT / 'src'}:{ROOT}",
        **({fused.EVERY: str(every)} if every is not None else {}),
    }
    with running(
        directory,
        f"{LEDGER}:{system}",
        processes,
        *options,
        settings=MANY_ROLLBACKS,
        environment=environment,
        program=(sys.executable, "-m", fused.__name__),
    ) as live:
        yield live, fuse, output
