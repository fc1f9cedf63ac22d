"""The search: visits every state of a scenario, breadth first, and checks the invariants in each.

Safety: a snapshot with all fragments has a consistent cut, exact channel states and a proof that holds. Liveness: when
nothing can happen any more, every required snapshot is complete and no process holds buffers. Every run ends, as
messages, snapshots and crashes are finite, so every maximal run completes its snapshots.
"""

from collections.abc import Callable, Iterator

import msgspec

from strobe.causality.proof import verify
from strobe.errors import ProtocolViolation
from strobe.protocol import Fragment, LocalState, Snapshot, SnapshotId
from strobe.simulation.explorer.scenarios import Scenario
from strobe.simulation.explorer.space import Space
from strobe.simulation.explorer.states import Action, ActualMessages, Global


class Explored(msgspec.Struct, frozen=True):
    """The result of a search. `path` is a shortest path to the violation, if there is one.

    `handles` counts calls of the protocol's `handle`, `ends` the states in which nothing can happen any more.
    """

    scenario: Scenario
    states: int
    transitions: int
    handles: int
    ends: int
    problem: str = ""
    path: tuple[Action, ...] = ()

    @property
    def holds(self) -> bool:
        return not self.problem


class Search:
    """Breadth first, so that the first violation found has a shortest path."""

    def __init__(self, space: Space, on_progress: Callable[[int], None] | None = None) -> None:
        self.space = space
        self.on_progress = on_progress or (lambda states: None)
        self._judged: dict[tuple[SnapshotId, tuple[int, ...]], str] = {}

    def run(self) -> Explored:
        """Visit every state, or stop at the first violation."""
        start = self.space.start()
        parents: dict[Global, Global | None] = {start: None}
        level = [start]
        transitions = ends = 0
        while level:
            following: list[Global] = []
            for state in level:
                stuck = True
                try:
                    for _, after in self.space.successors(state):
                        stuck = False
                        transitions += 1
                        if after in parents:
                            continue
                        parents[after] = state
                        following.append(after)
                        if after[-2] != state[-2]:
                            problem = self._judge(after)
                            if problem:
                                return self._report(parents, transitions, ends, problem, after)
                except ProtocolViolation as violation:
                    return self._report(parents, transitions, ends, str(violation), state)
                if stuck:
                    ends += 1
                    problem = self._judge_end(state)
                    if problem:
                        return self._report(parents, transitions, ends, problem, state)
            level = following
            self.on_progress(len(parents))
        return self._report(parents, transitions, ends, "", None)

    def _judge(self, state: Global) -> str:
        """Return the faults of the complete snapshots in `state`."""
        for snapshot, numbers in self.space.complete(state):
            key = (snapshot, numbers)
            if key not in self._judged:
                self._judged[key] = "\n".join(self._problems(snapshot, numbers))
            if self._judged[key]:
                return self._judged[key]
        return ""

    def _problems(self, snapshot: SnapshotId, numbers: tuple[int, ...]) -> Iterator[str]:
        parts = [self.space.fragments.values[number] for number in numbers]
        fragments: dict[str, Fragment] = {}
        actual: dict[str, ActualMessages] = {}
        for fragment, captured in parts:
            if captured is None:
                yield f"{snapshot}: {fragment.process} handed over a fragment without a state"
                return
            actual[fragment.process] = captured
            fragments[fragment.process] = msgspec.structs.replace(fragment, state=LocalState(0, "bytes", b""))
        whole = Snapshot(snapshot, self.space.scenario.protocol, (), self.space.view_in(snapshot.epoch), fragments)
        yield from _compare_with_actual(whole, actual)
        yield from (f"{snapshot}: {finding}" for finding in verify(whole).findings)

    def _judge_end(self, state: Global) -> str:
        complete = {snapshot for snapshot, _ in self.space.complete(state)}
        missing = [snapshot for snapshot in self.space.required(state) if snapshot not in complete]
        if missing:
            return f"{missing[0]} never completes: nothing can happen any more"
        held = self.space.held(state)
        if held:
            return f"{held[0]} at the end"
        return ""

    def _report(
        self, parents: dict[Global, Global | None], transitions: int, ends: int, problem: str, state: Global | None
    ) -> Explored:
        path: list[Action] = []
        while state is not None:
            before = parents[state]
            if before is not None:
                path.append(next(action for action, after in self.space.successors(before) if after == state))
            state = before
        return Explored(
            self.space.scenario,
            len(parents),
            transitions,
            self.space.handles,
            ends,
            problem,
            tuple(reversed(path)),
        )


def explore(
    scenario: Scenario, protocol_class: object = None, on_progress: Callable[[int], None] | None = None
) -> Explored:
    """Explore `scenario`, with the shipped protocol class or a replacement."""
    return Search(Space(scenario, protocol_class), on_progress).run()


def _compare_with_actual(snapshot: Snapshot, actual: dict[str, ActualMessages]) -> Iterator[str]:
    """Compare the cut and channel states with what the processes had really done when they recorded."""
    for spec in snapshot.view.channels:
        sent = frozenset(range(1, dict(actual[spec.source].sent)[spec.id] + 1))
        received = dict(actual[spec.target].received)[spec.id]
        if received - sent:
            yield f"{snapshot.id}: {spec.id} has received {sorted(received - sent)} before it was sent: inconsistent"
        items = snapshot.fragments[spec.target].in_flight.get(spec.id, ())
        recorded = [item.frame.first_ordinal for item in items]
        in_order = recorded if spec.kind == "fifo" else sorted(recorded)
        if in_order != sorted(sent - received):
            yield f"{snapshot.id}: {spec.id} recorded {recorded}, in flight were {sorted(sent - received)}"
