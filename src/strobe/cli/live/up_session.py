"""One `strobe up`, from start to stop: supervises the children, shows their status, and stops them gracefully.

A coordinator may hang, or be absent for a while. Requests to it run in threads that nothing waits for, so that killed
children are restarted and interrupts are handled even then.
"""

import contextlib
import time
from collections.abc import Sequence
from concurrent.futures import Future

from strobe.cli.live.child import COORDINATOR, HANDED_OVER, EndedChild
from strobe.cli.live.run_outcome import RunOutcome
from strobe.cli.live.supervisor import ChildFailed, Supervisor
from strobe.cli.live.up_display import UpDisplay, condition_summary, failure_text
from strobe.cli.shell.output import count, note, print_line
from strobe.cli.shell.waiting import ask, interruptible
from strobe.errors import StoreError, TransportError
from strobe.runtime.api.client import RequestRefused
from strobe.runtime.coordinator.status import MISSING, RESTARTING
from strobe.runtime.messages.api_documents import COMMITTED, Status, TakeResult
from strobe.runtime.messages.verdicts import ConditionStatus, merged
from strobe.storage import Store

POLL_EVERY_S = 0.5
TICK_S = 0.05
SILENT_S = 3.0
"""A coordinator that does not answer for this long is reported."""
_SILENCE = "silence"
LAST_SNAPSHOT_S = 10.0
ANSWER_S = 2.0
"""Extra time for a responsive coordinator to report the outcome of the last snapshot."""
LAST_VERDICTS_S = 5.0
"""How long the end waits for the verdicts on the last snapshot."""


class Session:
    """One `strobe up`."""

    def __init__(self, supervisor: Supervisor, programs: Sequence[str] = (), quiet: bool = False) -> None:
        self._supervisor = supervisor
        self._programs = programs
        self._display = UpDisplay(quiet)
        self._status: Status | None = None
        self._request: Future[Status] | None = None
        self._requested_s = 0.0
        self._answered_s = time.monotonic()
        self._silent = False
        self._outcomes = RunOutcome(time.time_ns() // 1000)
        # The declared conditions as judged by each coordinator of this run, by its start time.
        self._conditions: dict[int, list[ConditionStatus]] = {}
        # Processes that failed by themselves and were not shown yet. If the system is halted for that, the report shows
        # it.
        self._unreported: list[EndedChild] = []

    def run(self, seconds: float | None, restore: str | None = None, fork: bool = False) -> Status | None:
        """Run until the time is over or an interrupt arrives; return the last status.

        `restore`: start from this snapshot. It is requested once, before any node can continue from another one.
        """
        # An interrupt before everything is started need not wait for anything.
        self._supervisor.start(lambda client: client.restore(restore, fork) if restore is not None else None)
        with interruptible() as interrupted:
            note(f"running; logs are in {self._supervisor.logs}, the API is at http://{self._supervisor.client.api}")
            self._note_not_started(self._supervisor.left, self._supervisor.listen)
            self._answered_s = time.monotonic()
            deadline_s = time.monotonic() + seconds if seconds is not None else None
            with self._display:
                self._follow(interrupted, deadline_s)
                if not self._is_halted:
                    again = "; press Ctrl-C again to end everything at once" if interrupted else ""
                    note(f"stopping: taking a last snapshot, for {LAST_SNAPSHOT_S:g} s at most{again}")
                    self._take_last()
            self._stop()
        return self._status

    @property
    def problem(self) -> str | None:
        """Why the run counts as failed although it was not halted: it has saved nothing recently."""
        if self._silent:
            return "the coordinator did not answer at the end, so nothing recent was saved; its log has the reason"
        return self._outcomes.problem

    @property
    def _is_halted(self) -> bool:
        return self._status is not None and self._status.halted is not None

    def _note_not_started(self, left: Sequence[str], listen: str) -> None:
        """Print which processes are not started."""
        for name in left:
            note(
                f"{name} has left, and is not started; to let it join again: "
                f"strobe node SYSTEM --name {name} --coordinator {listen}"
            )
        for name in self._programs:
            if name not in left:
                note(f"{name} is a program with its own event loop: start it yourself; its coordinator is {listen}")

    # While it runs

    def _follow(self, interrupted: list[int], deadline_s: float | None) -> None:
        while not interrupted and (deadline_s is None or time.monotonic() < deadline_s):
            self._keep_running()
            if self._is_halted:
                return
            time.sleep(TICK_S)

    def _keep_running(self) -> None:
        """Restart ended children, and update the status."""
        for ended in self._supervisor.tick():
            if ended.name == COORDINATOR:
                self._answered_s, self._silent = time.monotonic(), False  # the next one gets its full start-up time
                self._display.end_notice(_SILENCE)
            if ended.code > 0 and ended.name != COORDINATOR and ended.code != HANDED_OVER:
                self._unreported.append(ended)
            else:
                self._show_end(ended)
        self._poll_status()

    def _show_end(self, ended: EndedChild) -> None:
        if ended.name == COORDINATOR:
            self._display.show_event(f"{ended}; it is started again, and processes continue meanwhile")
        else:
            self._display.show_event(f"{ended}{'; it is started again' if ended.code else ''}")

    def _poll_status(self) -> None:
        """Request the status if it is time to, or handle the response if it has arrived."""
        if self._request is None and time.monotonic() - self._requested_s >= POLL_EVERY_S:
            self._request, self._requested_s = ask(self._supervisor.client.status), time.monotonic()
        elif self._request is not None and self._request.done():
            request, self._request = self._request, None
            # If there is no coordinator, its end was reported, or will be by the next tick, which knows the reason.
            with contextlib.suppress(TransportError):
                self._show(request.result())
        if time.monotonic() - self._answered_s >= SILENT_S:
            self._report_silence()

    def _show(self, status: Status) -> None:
        self._status, self._answered_s = status, time.monotonic()
        self._outcomes.update(status)
        self._supervisor.note_status(status)
        self._conditions[status.started_us] = status.conditions
        self._silent = False
        self._display.end_notice(_SILENCE)
        if status.halted is None:
            self._show_unreported()
        self._display.show(status)
        for process in status.processes:
            if process.state in (MISSING, RESTARTING):
                self._supervisor.needed(process.name)

    def _show_unreported(self) -> None:
        unreported, self._unreported = self._unreported, []
        for ended in unreported:
            self._show_end(ended)

    def _report_silence(self) -> None:
        """Report once that the coordinator runs but does not respond. It is not killed, since it may only be slow."""
        self._show_unreported()
        pid = self._supervisor.pid(COORDINATOR)
        if not self._silent and pid is not None:
            self._silent = True
            self._display.show_notice(
                _SILENCE,
                f"the coordinator has not answered for {SILENT_S:g} s, and its process {pid} is still there; processes "
                f"continue, but no snapshots are taken; if it hangs, kill it (kill -9 {pid}): a new one is started at "
                "once",
            )

    # At the end

    def _take_last(self) -> None:
        """Take a last snapshot, so that nothing is undone at the next start; report its outcome.

        Children that end meanwhile, or ended just before, are restarted. Processes outlive their coordinator. Without
        the next one, which starts within a second, all their work since the last snapshot would be undone. If a process
        is lost, the system must roll back first; otherwise a snapshot request would never complete.
        """
        deadline_s = time.monotonic() + LAST_SNAPSHOT_S
        taking: Future[TakeResult] | None = None
        requested_s = 0.0
        why = "the coordinator does not answer"
        while (left_s := deadline_s - time.monotonic()) > 0 or (taking and not self._silent and left_s > -ANSWER_S):
            self._keep_running()
            if self._is_halted:
                return
            if taking is not None and taking.done():
                try:
                    self._report_last(taking.result())
                    return
                except (TransportError, RequestRefused) as error:  # if the system was halted, that is noticed next
                    taking, why = None, str(error)
            elif taking is None and left_s > 0 and time.monotonic() - requested_s >= POLL_EVERY_S:
                taking, requested_s = self._ask_last(left_s), time.monotonic()
            time.sleep(TICK_S)
        self._report_none_taken(why)

    def _ask_last(self, left_s: float) -> "Future[TakeResult]":
        client, timeout_s = self._supervisor.client, max(0.1, round(left_s, 1))
        return ask(lambda: client.take(wait=True, timeout_s=timeout_s))

    def _report_last(self, taken: TakeResult) -> None:
        self._outcomes.take(taken)
        if taken.outcome == COMMITTED:
            note(f"last snapshot: {taken.id}, {taken.outcome}")
        else:
            self._report_none_taken(f"{taken.id} was {taken.outcome}: {taken.reason}")

    def _report_none_taken(self, why: str) -> None:
        complete = self._complete()
        if complete == 0:
            undone = "the store has no other one: the next start is from the initial state"
        else:
            newest = "its newest one" if complete else "its newest one, if there is one"
            undone = f"the next start continues from {newest}, and everything after that is undone"
        note(f"no last snapshot could be taken ({why}); {undone}")

    def _stop(self) -> None:
        """Stop everything. If the system was halted, show the reason."""
        was_halted = self._is_halted
        if not self._silent and not was_halted:
            with contextlib.suppress(TransportError, TimeoutError):
                self._await_verdicts()
        self._supervisor.stop(asks=not self._silent)
        report = self._status.halted if self._status is not None else None
        failure = ChildFailed(COORDINATOR, 1, report, halted=True) if report else self._supervisor.failure
        if failure is not None and not was_halted:
            raise failure
        if self._status is not None:
            # Snapshots may have been committed while everything was stopping.
            self._status.committed = self._complete() or 0
            self._outcomes.update(self._status)
            self._status.conditions = merged(self._conditions.values())
            for condition in self._status.conditions:
                print_line(condition_summary(condition))
            print_line(self._summary(self._status))
        if self.problem is not None:
            note(self.problem)

    def _await_verdicts(self) -> None:
        """Get the last status, with the verdicts on the last snapshot if they arrive soon."""
        deadline_s = time.monotonic() + LAST_VERDICTS_S
        while True:
            self._status = status = ask(self._supervisor.client.status).result(ANSWER_S)
            self._conditions[status.started_us] = status.conditions
            if time.monotonic() > deadline_s or not any(condition.pending for condition in status.conditions):
                return
            time.sleep(TICK_S)

    def _complete(self) -> int | None:
        """Count the snapshots in the store, or in the last status if it cannot be read; None if there is neither."""
        try:
            store = Store.open(self._supervisor.store, identity=self._supervisor.identity)
            return len(store.state().committed)
        except StoreError:
            return self._status.committed if self._status is not None else None

    def _summary(self, status: Status) -> str:
        rollbacks = count(len(status.rollbacks), "rollback")
        complete = count(status.committed, "complete snapshot")
        failed = [failure_text(condition) for condition in status.conditions if condition.failed]
        reason = f"; exit code 1: {'; '.join(failed)}" if failed else ""
        return f"{complete} in the store, {status.aborted:,} aborted, {rollbacks}; everything has ended{reason}"
