"""Judging of every committed snapshot, on the coordinator's side: which conditions to evaluate, and their verdicts."""

from collections.abc import Callable, Iterable, Mapping, Sequence

from strobe.process import System
from strobe.runtime.coordinator.generations import Generations
from strobe.runtime.event_log import EventLog
from strobe.runtime.judging.evaluation import conditions_of, needs_judge
from strobe.runtime.judging.judge_process import Judge
from strobe.runtime.judging.questions import Question
from strobe.runtime.messages.api_documents import COMMITTED, FinishedSnapshot
from strobe.runtime.messages.verdicts import ConditionStatus, ConditionVerdict, Verdicts
from strobe.storage import LogState


class Judgement:
    """Judges the conditions of `system`, in a process started by `command`.

    `finished` are the snapshots shown to users; they get their verdicts. `on_verdict` is called with the name of a
    condition and its verdict.
    """

    def __init__(
        self,
        command: Sequence[str],
        system: System,
        timeout_s: float,
        state: LogState,
        generations: Generations,
        finished: Iterable[FinishedSnapshot],
        log: EventLog,
        on_verdict: Callable[[str, ConditionVerdict], None],
    ) -> None:
        self._state = state
        self._generations = generations
        self._finished = finished
        self._on_verdict = on_verdict
        self.conditions = conditions = conditions_of(system)
        self._verdicts = Verdicts(conditions, log)
        self.judge = Judge(command, conditions, timeout_s, self._note, self._verdicts.skipped)
        self._wanted = needs_judge(system)
        # Whether the store begins with the initial states of the system.
        self._initial = False

    def start(self) -> None:
        """Start, after the log has been read."""
        self._initial = self._generations.is_new(self._state)
        if self._wanted:
            self.judge.start()

    async def close(self) -> None:
        await self.judge.close()

    def finished(self, snapshot: FinishedSnapshot) -> None:
        """Have a finished snapshot judged, if it was committed."""
        state, generations = self._state, self._generations
        if not self._wanted or snapshot.outcome != COMMITTED or snapshot.id not in state.committed:
            return
        generation = generations.of(snapshot.id)
        oldest = generations.oldest(generation, state)
        reference = (oldest, state.committed[oldest].position) if oldest not in (None, snapshot.id) else None
        position = state.committed[snapshot.id].position
        self.judge.put(Question(snapshot.id, position, generation, reference, self._initial))

    def status(self) -> list[ConditionStatus]:
        return self._verdicts.status(self.judge.pending)

    def of(self, snapshot: str) -> dict[str, ConditionVerdict]:
        """Return the verdicts on a snapshot, if they are still kept."""
        return self._verdicts.of(snapshot)

    def _note(self, snapshot: str, verdicts: Mapping[str, ConditionVerdict]) -> None:
        self._verdicts.note(snapshot, verdicts)
        for finished in self._finished:
            if finished.id == snapshot:
                finished.verdicts = dict(verdicts)
        for name, verdict in verdicts.items():
            self._on_verdict(name, verdict)
