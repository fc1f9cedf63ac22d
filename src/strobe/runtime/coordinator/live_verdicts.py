"""Judging of every committed snapshot, on the coordinator's side: which conditions to evaluate, and their verdicts."""

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from strobe.runtime.judging.evaluation import Question, conditions_of
from strobe.runtime.judging.judge_process import Judge
from strobe.runtime.messages.api_documents import COMMITTED, FinishedSnapshot
from strobe.runtime.messages.verdicts import ConditionStatus, ConditionVerdict, Verdicts

if TYPE_CHECKING:
    from strobe.runtime.coordinator.coordinator import Coordinator


class Judgement:
    """Judges the conditions that the coordinator's system declares, in a process started by `command`.

    `on_verdict` is called with the name of a condition and its verdict.
    """

    def __init__(
        self, coordinator: "Coordinator", command: Sequence[str], on_verdict: Callable[[str, ConditionVerdict], None]
    ) -> None:
        conditions = conditions_of(coordinator.system)
        self._coordinator = coordinator
        self._on_verdict = on_verdict
        self._verdicts = Verdicts(conditions, coordinator.log)
        settings = coordinator.settings
        self.judge = Judge(command, conditions, settings.verdict_timeout_s, self._note, self._verdicts.skipped)
        self._wanted = bool(conditions)
        # Whether the store begins with the initial states of the system.
        self._initial = False

    def start(self) -> None:
        """Start, after the log has been read."""
        self._initial = self._coordinator.lineage.is_new(self._coordinator.state)
        if self._wanted:
            self.judge.start()

    async def close(self) -> None:
        await self.judge.close()

    def finished(self, snapshot: FinishedSnapshot) -> None:
        """Have a finished snapshot judged, if it was committed."""
        state, lineage = self._coordinator.state, self._coordinator.lineage
        if not self._wanted or snapshot.outcome != COMMITTED or snapshot.id not in state.committed:
            return
        generation = lineage.of(snapshot.id)
        oldest = lineage.oldest(generation, state)
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
        for finished in self._coordinator.progress.finished:
            if finished.id == snapshot:
                finished.verdicts = dict(verdicts)
        for name, verdict in verdicts.items():
            self._on_verdict(name, verdict)
