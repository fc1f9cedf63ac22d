"""The real coordinator without its loop and its thread: whoever drives it says when something is done."""

import io
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any

from tests.runtime.modelled_outside import Outside, Wrong

from strobe.protocol.coordination import Recovered
from strobe.protocol.log import Commit, EpochStart
from strobe.runtime.coordinator import Coordinator
from strobe.runtime.event_log import EventLog
from strobe.runtime.log_desk import LogDesk, Logged, Told
from strobe.runtime.settings import CoordinatorSettings

# Nothing is silent for too long here, and nobody is blamed for how often the world has it crash.
SETTINGS = CoordinatorSettings(
    interval_s=0.0, silence_s=600.0, timeout_s=15.0, overlapping_max=2, rollbacks_max=10_000, attempts_max=3
)


class SteppedClock:
    def __init__(self, outside: Outside) -> None:
        self._outside = outside

    def now_us(self) -> int:
        return self._outside.now_us


class SteppedStore:
    """Stands for the store's thread: jobs in order, each done when the world says so."""

    def __init__(self, outside: Outside, take: Callable[[Told], None]) -> None:
        self.problem: str | None = None
        self.desk = LogDesk(outside.store_url, lambda: outside.now_us, _fail_where_there_is_a_problem)
        self.desk.open(outside.identity)
        self.jobs: deque[Callable[[], list[Told]]] = deque()
        # Called with whatever a job tells.
        self.on_told: Callable[[Told], None] = lambda told: None
        self._outside = outside
        self._take = take

    def work(self, job: Callable[..., list[Told]], *arguments: Any) -> None:
        self.jobs.append(partial(job, *arguments))

    def do_one(self) -> None:
        for told in self.jobs.popleft()():
            self._check(told)
            self.on_told(told)
            self._take(told)

    def take_over(self, coordinator: str) -> None:
        """Read the log, and lead."""
        while some := self.desk.read_some():
            for told in some:
                self._take(told)
        for told in self.desk.lead(coordinator):
            self._take(told)

    def _check(self, told: Told) -> None:
        entry = told.entry if isinstance(told, Logged) else None
        if isinstance(entry, EpochStart):
            self._outside.epoch = max(self._outside.epoch, entry.epoch)
            self._outside.note(f"epoch {entry.epoch} from {entry.restored}: {entry.reason}")
        if isinstance(entry, Commit):
            both = set(entry.manifest.processes).intersection(entry.manifest.departed)
            if both:
                raise Wrong(f"snapshot {entry.snapshot} says of {sorted(both)} that it is there, and has left (E2)")


class SteppedCoordinator(Coordinator):
    """A coordinator without a loop: the world wakes it."""

    def __init__(self, outside: Outside) -> None:
        super().__init__(outside.system, outside.store_url, SETTINGS, log=EventLog(io.StringIO(), as_json=True))
        self.clock = SteppedClock(outside)  # type: ignore[assignment]
        self.stepped = SteppedStore(outside, self._take)
        self.store = self.stepped  # type: ignore[assignment]
        self.on_halt = _fail_where_there_is_a_problem
        self.stepped.take_over("one of several")
        self.identity = outside.identity
        self.hear(Recovered())

    def now_s(self) -> float:
        return self.clock.now_us() / 1e6

    def _wake_at(self, at_us: int) -> None:
        pass


def _fail_where_there_is_a_problem(problem: str | None) -> None:
    if problem is not None:
        raise Wrong(problem)
