"""The real coordinator without an event loop and a store thread: the caller decides when each job runs."""

import copy
import io
from collections import deque
from collections.abc import Callable
from functools import partial
from itertools import islice
from typing import Any

from tests.protocol.coordinator_host import fields_of
from tests.runtime.modelled_outside import Outside, Wrong
from tests.runtime.unremoved import keep_removed, whole_log

from strobe.protocol.coordinator.lifecycle import Lifecycle
from strobe.protocol.coordinator.messages import EntryLogged, Recovered
from strobe.protocol.values.log_entries import Commit, EntryRef, EpochStart, Void
from strobe.runtime.coordinator.coordinator import Coordinator
from strobe.runtime.coordinator.log_writer import Appended, CoordinatorLog, LogResult
from strobe.runtime.event_log import EventLog
from strobe.runtime.settings import CoordinatorSettings

# Settings under which no process counts as silent, and none is blamed for crashing too often.
SETTINGS = CoordinatorSettings(
    interval_s=0.0, silence_s=600.0, timeout_s=15.0, overlapping_max=2, rollbacks_max=10_000, attempts_max=3
)


class SteppedClock:
    def __init__(self, outside: Outside) -> None:
        self._outside = outside

    def now_us(self) -> int:
        return self._outside.now_us


class SteppedStore:
    """Replaces the store's thread: jobs in order, each run when the caller decides."""

    def __init__(self, outside: Outside, take: Callable[[LogResult], None]) -> None:
        self.problem: str | None = None
        self.log = CoordinatorLog(outside.store_url, lambda: outside.now_us, _raise_problem)
        self.log.open(outside.identity)
        keep_removed(self.log.store.backend)
        self.jobs: deque[Callable[[], list[LogResult]]] = deque()
        # Called with each result of a job.
        self.on_result: Callable[[LogResult], None] = lambda result: None
        self._outside = outside
        self._take = take

    @property
    def durable_entry(self) -> EntryRef | None:
        return self.log.store.durable_entry

    def work(self, job: Callable[..., list[LogResult]], *arguments: Any) -> None:
        self.jobs.append(partial(job, *arguments))

    def run_job(self) -> None:
        for result in self.jobs.popleft()():
            self._check(result)
            self.on_result(result)
            self._take(result)

    def take_over(self, coordinator: str) -> None:
        """Read the log, and begin a new term."""
        while results := self.log.read_some():
            for result in results:
                self._take(result)
        for result in self.log.lead(coordinator):
            self._take(result)

    def _check(self, result: LogResult) -> None:
        entry = result.entry if isinstance(result, Appended) else None
        if isinstance(entry, EpochStart):
            self._outside.epoch = max(self._outside.epoch, entry.epoch)
            self._outside.note(f"epoch {entry.epoch} from {entry.restored}: {entry.reason}")
        if isinstance(entry, Commit):
            both = set(entry.manifest.processes).intersection(entry.manifest.departed)
            if both:
                raise Wrong(f"snapshot {entry.snapshot} says of {sorted(both)} that it is there, and has left (E2)")


class SteppedCoordinator(Coordinator):
    """A coordinator without an event loop: the caller wakes it."""

    def __init__(self, outside: Outside) -> None:
        super().__init__(outside.system, outside.store_url, SETTINGS, log=EventLog(io.StringIO(), as_json=True))
        self.clock = SteppedClock(outside)  # type: ignore[assignment]
        self.stepped = SteppedStore(outside, self._take)
        self.store = self.stepped  # type: ignore[assignment]
        self.on_halt = _raise_problem
        self.stepped.take_over("one of several")
        self.identity = outside.identity
        lifecycle, position = copy.deepcopy(self.lifecycle), self.state.next_position
        self.handle(Recovered())
        if lifecycle.recovering and self.stepped.log.store.resume() is not None:
            _compare(lifecycle, _read_from_the_beginning(self, position), outside.now_us)

    def now_s(self) -> float:
        return self.clock.now_us() / 1e6

    def _wake_at(self, at_us: int) -> None:
        pass


def _read_from_the_beginning(coordinator: Coordinator, end: int) -> Lifecycle:
    """Return a lifecycle that has read the whole log up to `end`, without a checkpoint."""
    described = coordinator.lifecycle.membership
    lifecycle = Lifecycle(
        coordinator.first_view,
        SETTINGS.policy(),
        coordinator.system.protocol,
        epoch=0,
        recovering=True,
        outputs=described.outputs,
    )
    lifecycle.membership.staying = described.staying
    store = whole_log(coordinator.store_url)
    for _, entry in islice(store.read_log(), end):
        origin = store.origin(entry)
        if not isinstance(entry, Void):
            event = EntryLogged(entry, origin.departed, origin.joined) if origin is not None else EntryLogged(entry)
            lifecycle.handle(event, 0)
    return lifecycle


def _compare(lifecycle: Lifecycle, whole: Lifecycle, now_us: int) -> None:
    """Check that starting from a checkpoint gives the same state and effects as reading all entries (S1, E7)."""
    if lifecycle.handle(Recovered(), now_us) != whole.handle(Recovered(), now_us):
        raise Wrong("a coordinator that starts from a checkpoint orders other things")
    found = fields_of(lifecycle)
    for name, part in fields_of(whole).items():
        if part != found[name]:
            raise Wrong(f"a coordinator that starts from a checkpoint has another {name}: {found[name]}, {part}")


def _raise_problem(problem: str | None) -> None:
    if problem is not None:
        raise Wrong(problem)
