"""Runs a live system on one machine: a coordinator, and a node for each process, as supervised children.

Children write to log files of bounded size in the store's run directory. A pipe ties them to this program: however it
ends, they end too. A child that was killed or crashed is restarted, and at once if it has handed over. A child that
ended with exit code 0 has left. A child that cannot run at all (bad usage, something missing) stops everything, unless
it ran before: then it is restarted until it runs, since its program may be put right. A restarted coordinator may find
its port taken or its store unreachable. That may be transient, so it is retried a few times. A coordinator that was
replaced by another one ends everything here: if restarted, it would take over in turn. A restarted coordinator is given
the newest log entry that its predecessor has reported, so that it waits while an older copy of the store is in its
place.
"""

import contextlib
import os
import secrets
import signal
import sys
import time
from collections.abc import Callable, Sequence

from strobe.cli.live.child import COORDINATOR, Child, EndedChild
from strobe.cli.live.child_log import ChildLog
from strobe.cli.shell.output import note
from strobe.errors import LogReplaced, StoreError, StrobeError, TakenOver, TransportError
from strobe.runtime.api.client import Client
from strobe.runtime.api.discovery import Discovered, discover
from strobe.runtime.messages.api_documents import Status
from strobe.runtime.program.host_group import program_name
from strobe.storage import Store
from strobe.storage.files.urls import canonical_url, make_run_directory, run_directory

PROGRAM = (sys.executable, "-m", "strobe")
SLOW_START_S = 10.0
"""A coordinator that starts for this long is reported, with its reason, and again after each such period."""
FULL_DISK_S = 1.0
"""The first report, if the disk is full: then the coordinator cannot log its reason."""
STOP_S_MAX = 15.0
STOP_ANSWER_S = 3.0
"""Maximum time to wait for a coordinator's answer to a stop request."""
CLOSE_S_MAX = 1.0
_LAST_ENTRY = "--last-entry"
_NOT_RUNNABLE = (2, 3)
_NOT_NOW = 3
_HALT = 1
RETURNS_MAX = 10
"""Maximum number of failed restarts of a coordinator in a row; together they take more than ten seconds."""


class Supervisor:
    """The children of one system. `options` are the coordinator's, beside SYSTEM and the store.

    `program` is what runs as `strobe`. `identity` is that of the store; by default it is read at the start. Restarted
    children wait for that store. Each sequence of `shared` has further processes, which share one program.
    """

    def __init__(
        self,
        system: str,
        store: str,
        processes: Sequence[str],
        options: Sequence[str] = (),
        program: Sequence[str] = PROGRAM,
        identity: str = "",
        shared: Sequence[Sequence[str]] = (),
    ) -> None:
        self.system = system
        self.store = canonical_url(store)
        self.identity = identity
        self.logs = run_directory(store) / "log"
        self.options = list(options)
        self.program = program
        self.client: Client
        self.listen = ""
        # Processes that had left before the start.
        self.left: Sequence[str] = ()
        self.stopping = False
        self._programs = [(name,) for name in processes] + [tuple(names) for names in shared]
        # The child that runs each process.
        self._child_names: dict[str, str] = {}
        self._children: dict[str, Child] = {}
        self._lifeline, self._held = os.pipe()

    def start(self, before_nodes: Callable[[Client], object] = lambda _: None) -> None:
        """Start the coordinator, then all processes that have not left. StoreError: the store cannot be used.

        `before_nodes` is called when the coordinator has started, before any node.
        """
        self.identity = self.identity or Store.open(self.store).header.store
        coordinator = self._add(COORDINATOR, [COORDINATOR, self.system, *self._store_options, *self.options])
        coordinator.start(self._lifeline)
        found = self._await_coordinator(coordinator)
        # After a restart it must have the address that its nodes and users know.
        coordinator.arguments = _with_options(coordinator.arguments, {"--listen": found.listen, "--api": found.api})
        self.client, self.listen = Client(found.api, system=found.system), found.listen
        before_nodes(self.client)
        self.left = self.client.status().left
        for names in self._programs:
            here = [name for name in names if name not in self.left]
            if here:
                self._add_node(here, self.listen).start(self._lifeline)
            for name in set(names) - set(here):  # it would join again, or be refused; it is started if it is needed
                self._add_node([name], self.listen).ended = True

    def add_node(self, name: str, listen: str) -> None:
        """Start one more process."""
        self._add_node([name], listen).start(self._lifeline)

    def _add_node(self, names: Sequence[str], listen: str) -> Child:
        place = ["--coordinator", listen, *self._store_options]
        # A process that is killed after it has left, before it has ended, must not join again when restarted.
        run = ["--run", secrets.token_hex(8)]
        program = program_name(names)
        self._child_names.update(dict.fromkeys(names, program))
        named = [word for name in names for word in ("--name", name)]
        return self._add(program, ["node", self.system, *named, *place, *run])

    @property
    def _store_options(self) -> list[str]:
        return ["--store", self.store, "--store-id", self.identity]

    def tick(self) -> list[EndedChild]:
        """Restart children that should not have ended; return those that have ended since the last call."""
        ended = []
        for child in self._children.values():
            child.log.bound()
            code = child.poll()
            if code is not None:
                ended.append(EndedChild(child.name, code, child.last_error()))
                self._judge(child, code)
            idle = child.process is None and not child.ended and not self.stopping
            if idle and time.monotonic() >= child.restart_at_s:
                child.start(self._lifeline)
        return ended

    def needed(self, name: str) -> None:
        """Restart a departed process: the system was rolled back to before it left."""
        child = self._child(name)
        if child is not None and child.ended and child.process is None:
            child.ended = False

    def _child(self, name: str) -> Child | None:
        """Return the child of this name, or the one that runs the process of this name."""
        return self._children.get(self._child_names.get(name, name))

    def note_status(self, status: Status) -> None:
        """Remember the newest log entry that the coordinator has reported."""
        coordinator = self._children.get(COORDINATOR)
        if coordinator is not None and status.last_entry is not None and status.pid == coordinator.pid:
            last = f"{status.last_entry.position}:{status.last_entry.blake3}"
            coordinator.arguments = _with_options(coordinator.arguments, {_LAST_ENTRY: last})

    def _forget_log(self) -> None:
        """Forget the known log entry: the log was replaced."""
        coordinator = self._children[COORDINATOR]
        coordinator.arguments = _with_options(coordinator.arguments, {_LAST_ENTRY: ""})

    def pid(self, name: str) -> int | None:
        child = self._child(name)
        assert child is not None, f"there is no child {name}"
        return child.pid

    def starts(self, name: str) -> int:
        child = self._child(name)
        assert child is not None, f"there is no child {name}"
        return child.starts

    def kill(self, name: str, signal_number: int = signal.SIGKILL) -> bool:
        """Send a signal to a child; return whether it was running."""
        pid = self.pid(name)
        if pid is None:
            return False
        try:
            os.kill(pid, signal_number)
        except ProcessLookupError:
            return False
        return True

    def stop(self, asks: bool = True) -> None:
        """Stop the system gracefully; kill children that do not end in time. `asks`: first send a stop request."""
        self.stopping = True
        children = list(self._children.values())
        if not (asks and self._ask_to_stop()):
            self._cut_lifeline()  # the coordinator has ended or hangs, and cannot stop its nodes
            children = [child for child in children if child.name != COORDINATOR]
        self._await_end(STOP_S_MAX, children)
        self.close()

    @property
    def failure(self) -> "ChildFailed | None":
        """Why the coordinator has ended and is not restarted, if so: it has halted the system, or another one leads."""
        coordinator = self._children.get(COORDINATOR)
        return _final(coordinator, coordinator.code) if coordinator is not None else None

    def _ask_to_stop(self) -> bool:
        try:
            if hasattr(self, "client"):
                self.client.stop(timeout_s=STOP_ANSWER_S)
        except TransportError:
            return False
        return True

    def close(self) -> None:
        """End everything at once."""
        self.stopping = True
        self._cut_lifeline()
        try:
            self._await_end(CLOSE_S_MAX, list(self._children.values()))
        finally:
            for child in self._children.values():
                if child.process is not None:
                    # A child suspended by a signal does not notice that the pipe is closed.
                    child.process.kill()
                    child.process.wait()
                    child.process = None

    def _cut_lifeline(self) -> None:
        if self._held >= 0:
            os.close(self._held)
            os.close(self._lifeline)
            self._held = self._lifeline = -1

    def __enter__(self) -> "Supervisor":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
        for child in self._children.values():
            child.log.close()

    def _add(self, name: str, arguments: list[str]) -> Child:
        log = ChildLog(self.logs / f"{name}.log", self._make_room)
        log.open()
        child = Child(name, self.program, arguments, log)
        self._children[name] = child
        return child

    def _make_room(self) -> None:
        try:
            make_run_directory(self.store, self.identity, "log")
        except OSError as error:
            raise StoreError(self.store, f"cannot use {self.logs}: {error.strerror}") from error

    def _judge(self, child: Child, code: int) -> None:
        """Decide what the end of a child means."""
        if child.name == COORDINATOR and code == LogReplaced.exit_code:
            self._forget_log()
            return
        if self.stopping or self._may_return(child, code) or code < 0:
            return
        if (failure := _final(child, code)) is not None:
            raise failure
        if code in _NOT_RUNNABLE and (child.name == COORDINATOR or child.starts <= 1):
            raise ChildFailed(child.name, code, child.final_error(), False)
        child.ended = code == 0 and child.name != COORDINATOR

    def _may_return(self, child: Child, code: int) -> bool:
        """Return whether to retry a coordinator that failed to restart; processes run without it meanwhile."""
        has_served = child.starts > 1 or bool(self.listen)
        child.failed_returns = child.failed_returns + 1 if code == _NOT_NOW and has_served else 0
        return child.name == COORDINATOR and 0 < child.failed_returns <= RETURNS_MAX

    def _await_coordinator(self, child: Child) -> Discovered:
        """Wait until it listens. Before that it reads the whole log, and may wait for the store."""
        report_s = time.monotonic() + (FULL_DISK_S if child.log.problem() else SLOW_START_S)
        while True:
            code = child.poll()
            if code is not None:
                raise ChildFailed(child.name, code, child.final_error(), False)
            with contextlib.suppress(TransportError, StoreError):  # it is still starting
                found = discover(self.store)
                if found.pid == child.pid:
                    return found
            if time.monotonic() >= report_s:
                report_s += SLOW_START_S
                why = child.last_error() or child.log.problem() or "it reads the log"
                note(f"the coordinator is still starting: {why}; see {child.log.path}")
            time.sleep(0.02)

    def _await_end(self, seconds: float, awaited: list[Child]) -> None:
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline and any(child.process for child in awaited):
            for child in self._children.values():
                child.poll()
            if COORDINATOR in self._children and self._children[COORDINATOR].process is None:
                self._cut_lifeline()  # it ends last: remaining nodes were not connected, and got no stop message
            time.sleep(0.02)


def _final(child: Child, code: int | None) -> "ChildFailed | None":
    """Return the failure of a coordinator that must not be restarted, if it has ended with one."""
    if child.name == COORDINATOR and code == _HALT:
        return ChildFailed(child.name, code, child.report(), True)
    if child.name == COORDINATOR and code == TakenOver.exit_code:
        return ChildFailed(child.name, code, child.final_error(), False)
    return None


class ChildFailed(StrobeError):
    """A child cannot run, or has stopped the whole system; `tail` is the reason, or the end of its log."""

    def __init__(self, name: str, code: int, tail: str, halted: bool) -> None:
        super().__init__(name, code, tail, halted)
        self.name = name
        self.exit_code = code if code > 0 else 3
        self.tail = tail
        self.halted = halted

    def __str__(self) -> str:
        if self.halted or self.exit_code == TakenOver.exit_code:
            return self.tail
        separator = "\n" if "\n" in self.tail else " "
        return f"{self.name} ended with exit code {self.exit_code}:{separator}{self.tail}"


def _with_options(arguments: list[str], options: dict[str, str]) -> list[str]:
    """Return `arguments` with these options added or replaced."""
    kept: list[str] = []
    skip = False
    for argument in arguments:
        if skip:
            skip = False
        elif argument in options:
            skip = True
        else:
            kept.append(argument)
    return [*kept, *(word for option in options.items() for word in option)]
