"""A system that runs as real processes during a test."""

import shutil
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec

from strobe.cli.arguments.live_options import load_live
from strobe.cli.arguments.start_check import check_all, programs_of
from strobe.cli.arguments.systems import open_system
from strobe.cli.live.supervisor import Supervisor
from strobe.errors import StrobeError, TransportError, UsageError
from strobe.process import System
from strobe.runtime.api.client import RequestRefused
from strobe.runtime.messages.api_documents import COMMITTED, Status
from strobe.runtime.recovery.trial_restore import TrialLevels, decode
from strobe.storage import Store
from strobe.storage.inspection.verification import Level, StoreLevels, Verified
from strobe.testing.program import command
from strobe.testing.systems import absolute, imported, spec_of

TICK_S = 0.02
PAUSE_S = 0.05


class TakenSnapshot(msgspec.Struct, frozen=True):
    """A committed snapshot: the state of each process, and all messages in flight."""

    id: str
    states: dict[str, Any]
    messages: list[Any]


class RunningSystem:
    """A running system. A killed process is started again, and the system rolls back, as under `strobe up`."""

    def __init__(
        self, system: System | str, near: Path, store: Path, interval_s: float, settings: dict[str, object]
    ) -> None:
        spec = spec_of(system, near)
        if spec is None:
            raise UsageError(
                "each process of a live system loads it from a file, and this System is not a variable of any; "
                "assign it to one in a module, or give its name: live_system('file.py:name')"
            )
        self.store = store
        self._spec = absolute(spec)
        self._system = _checked(self._spec)
        known = imported(self._spec)
        self._types = known if known is not None else self._system
        addresses = ["--listen", "127.0.0.1:0", "--api", "127.0.0.1:0", "--interval", str(interval_s)]
        chosen = [word for key, value in settings.items() for word in ("--set", f"{key}={value}")]
        self._supervisor = self._supervise([*addresses, *chosen])
        self._lock = threading.Lock()
        self._failure: StrobeError | None = None
        self._ending = threading.Event()
        self._keeper = threading.Thread(target=self._keep_running, name="strobe live_system", daemon=True)

    def _supervise(self, options: list[str]) -> Supervisor:
        """Return the supervisor of programs that work in the directory of the store, with the modules of the test."""
        directory, spec = self.store.parent, self._spec
        Store.create(str(self.store))
        beside = [str(Path(spec).parent)] if Path(spec).is_absolute() else []
        program = command(directory, list(dict.fromkeys([*beside, str(Path.cwd()), *filter(None, sys.path)])))
        if spec.endswith(".toml"):
            # Relative files of a system.toml are beside it; here, they are those of the test.
            spec = str(shutil.copy(spec, str(directory)))
        return Supervisor(spec, str(self.store), list(self._system.processes), options, program)

    def start(self) -> None:
        """Start the coordinator and every process."""
        self._supervisor.start()
        self._keeper.start()

    @property
    def api(self) -> str:
        """The address of the coordinator's API, host:port."""
        return self._supervisor.client.api

    def status(self) -> Status:
        """Return what `GET /v1/status` answers: processes, channels, snapshots, rollbacks, conditions."""
        self._require_alive()
        return self._supervisor.client.status()

    def snapshot(self, timeout_s: float = 60.0) -> TakenSnapshot:
        """Take a snapshot, and return it when it is committed; after a kill, that is after the rollback."""
        deadline_s = time.monotonic() + timeout_s
        reason = "no coordinator answered"
        while time.monotonic() < deadline_s:
            self._require_alive()
            try:
                taken = self._supervisor.client.take(wait=True, timeout_s=max(0.1, deadline_s - time.monotonic()))
            except (RequestRefused, TransportError) as error:
                reason = str(error)
            else:
                if taken.outcome == COMMITTED and taken.id is not None:
                    return self._decoded(taken.id)
                reason = taken.reason or taken.outcome
            time.sleep(PAUSE_S)
        raise TransportError(f"no snapshot was committed within {timeout_s:g} s: {reason}; logs: {self.logs}")

    def kill(self, name: str) -> None:
        """Kill a process, or the "coordinator", as `kill -9` does. It is started again at once."""
        self._require_alive()
        known = [*self._system.processes, "coordinator"]
        if name not in known:
            raise UsageError(f"there is no process {name!r} to kill; choose: {', '.join(known)}")
        with self._lock:
            killed = self._supervisor.kill(name)
        if not killed:
            raise TransportError(f"process {name!r} is not running; wait with snapshot() before you kill it again")

    @property
    def logs(self) -> Path:
        """The directory with the log of each program."""
        return self._supervisor.logs

    def stop(self) -> None:
        """Stop everything; the fixture does it at the end of the test."""
        if self._ending.is_set():
            return
        self._ending.set()
        if self._keeper.ident is not None:
            self._keeper.join()
            with suppress(StrobeError):
                self._supervisor.stop()
        self._supervisor.__exit__()

    def end(self) -> list[str]:
        """Stop everything, and return what went wrong: why the system stopped by itself, snapshots that do not hold."""
        self.stop()
        if self._failure is not None:
            return [str(self._failure)]
        store = Store.open(str(self.store))
        levels = TrialLevels(store, StoreLevels(store), self._load)
        verified = [levels.verify(name, Level.INVARIANTS) for name in store.state().committed]
        return [f"snapshot {one.id}: {problem}" for one in verified if not one.holds for problem in _problems(one)]

    def _load(self) -> System:
        with open_system(self._spec) as source:
            return source.load()

    def _decoded(self, snapshot_id: str) -> TakenSnapshot:
        decoded = decode(self._types, Store.open(str(self.store)).load(snapshot_id))
        if decoded.findings:
            first = decoded.findings[0]
            raise UsageError(f"snapshot {snapshot_id} cannot be decoded: {first.subject}: {first.problem}")
        return TakenSnapshot(snapshot_id, decoded.state.states, decoded.state.messages)

    def _keep_running(self) -> None:
        while not self._ending.wait(TICK_S):
            try:
                with self._lock:
                    self._supervisor.tick()
            except StrobeError as error:  # the coordinator has stopped the system, or a program cannot run
                self._failure = error
                return

    def _require_alive(self) -> None:
        if self._failure is not None:
            raise self._failure
        if self._ending.is_set():
            raise UsageError("the system was stopped; start another: live_system(...)")


def _checked(spec: str) -> System:
    """Return the system that `spec` names, checked as before a start."""
    with open_system(spec) as source:
        system = load_live(source).system
        check_all(system)
    programs = programs_of(system)
    if programs:
        raise UsageError(
            f"process {programs[0]!r} is a program with its own event loop, which live_system cannot start; "
            "give the process a class for this test"
        )
    return system


def _problems(verified: Verified) -> list[str]:
    return [f"{finding.subject}: {finding.problem}" for finding in verified.findings]
