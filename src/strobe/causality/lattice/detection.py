"""Possibly and definitely (G3): did a condition hold at some consistent cut, did every observer see it hold?

- *possibly*: there is a consistent cut at which the condition holds. The answer includes such a cut.
- *definitely*: every path from the beginning to the end, through consistent cuts and one event at a time, passes a cut
  at which it holds. If not, the answer includes a path that avoids it.

Conditions on one process each, joined by `and`, take polynomial time (`conjunctive.py`). So does *possibly* of several
of these, joined by `or`. For other conditions a lattice is searched: not that of the run, but that of the events that
can change the condition (`projection.py`). It may have exponentially many cuts. After `cuts_max` of them, or if a level
takes too much memory, the answer is "undecided". No answer depends on the order of processes in the trace.

The questions are those of R. Cooper and K. Marzullo, "Consistent detection of global predicates" (1991).
"""

from collections import deque
from typing import NamedTuple

import msgspec

from strobe.causality.lattice.conditions import Condition
from strobe.causality.lattice.conjunctive import least_cut, unavoidable
from strobe.causality.lattice.enumeration import CUTS_MAX, Budget, LexicalWalk, Progress
from strobe.causality.lattice.order import States, Steps
from strobe.causality.lattice.pairs import consistent_pair, is_pair
from strobe.causality.lattice.parts import Conjunction, Joined, grouped, joined, size_of, tables_of
from strobe.causality.lattice.paths import LevelWalk, dive, guarded_path
from strobe.causality.lattice.programs import CompiledCondition
from strobe.causality.lattice.projection import Projection, projected, sliced
from strobe.causality.lattice.run import TraceRun
from strobe.causality.lattice.variables import KnownStates
from strobe.causality.trace import EventRef, Trace
from strobe.expressions.nodes import AND

POSSIBLY, DEFINITELY = "possibly", "definitely"
CONJUNCTIVE, SWEEP, LATTICE = "conjunctive", "sweep", "lattice"
BY_CUTS_MAX, BY_MEMORY = "max-cuts", "memory"

LEVEL_CUTS_MAX = 10_000_000
"""Limit for *definitely*, which keeps the cuts it examines: 8 bytes per cut, plus one level (LEVEL_BYTES_MAX)."""
_SWEPT_EVENTS_MAX = 20_000_000
"""Limit for all sweeps together: a condition may compare processes thousands of times."""
_DIVE_CUTS_MAX = 20_000
_DIVE_STEPS_MAX = 2_000_000
"""Maximum number of operations of a condition evaluated in Python, cut by cut."""


class Detection(msgspec.Struct, frozen=True, kw_only=True):
    """The answer to a question about all consistent cuts; `answer` is None if it is undecided.

    `cut` is a cut at which the condition holds, `values` the values of its names there. `path` has all events in an
    order in which it never holds. `method` is how the answer was found, `examined` how many cuts were examined.
    `stopped_by` is why it is undecided: BY_CUTS_MAX, or BY_MEMORY, for which a higher `cuts_max` does not help.
    """

    question: str
    expression: str
    answer: bool | None
    method: str
    examined: int = 0
    cut: dict[str, int] | None = None
    values: dict[str, object] = {}
    path: tuple[EventRef, ...] | None = None
    stopped_by: str | None = None


def possibly(
    trace: Trace,
    expression: str,
    cuts_max: int = CUTS_MAX,
    states: KnownStates | None = None,
    progress: Progress | None = None,
) -> Detection:
    """Return whether the condition holds at some consistent cut of `trace`."""
    condition = Condition(TraceRun(trace), expression, states)
    to_search: list[Conjunction] = []
    for term in condition.terms:
        least = least_cut(condition.run, term.local)
        if least is None:  # the conditions on single processes never hold together, so the term never holds
            continue
        if not term.joined:
            return _holds(POSSIBLY, condition, CONJUNCTIVE, least)
        to_search.append(term)
        if term.holds_at(least):
            return _holds(POSSIBLY, condition, LATTICE, least, len(to_search))
    if not to_search:
        return Detection(question=POSSIBLY, expression=expression, answer=False, method=CONJUNCTIVE)
    found, undecided = _sweep(condition.run, to_search)
    if found is not None:
        return _holds(POSSIBLY, condition, SWEEP, found)
    if not undecided:
        return Detection(question=POSSIBLY, expression=expression, answer=False, method=SWEEP)
    return _search(condition, grouped(undecided), Budget(cuts_max, progress))


def _sweep(run: TraceRun, terms: list[Conjunction]) -> tuple[States | None, list[Conjunction]]:
    """Sweep the comparisons of two processes; return a cut at which a term holds, or the undecided terms."""
    undecided: list[Conjunction] = []
    sweeps_left = max(1, _SWEPT_EVENTS_MAX // (run.event_count + 1))
    for term in terms:
        pairs = [part for part in term.joined if is_pair(part)][:sweeps_left]
        sweeps_left -= len(pairs)
        swept = [_swept(run, term, pair) for pair in pairs]
        for found in swept:
            if found is not None and term.holds_at(found):
                return found, []
        if None not in swept:  # otherwise one of its comparisons never holds
            undecided.append(term)
    return None, undecided


def _swept(run: TraceRun, term: Conjunction, pair: Joined) -> States | None:
    """Return a cut at which the local parts of a term hold, and its comparison of two processes."""
    order = _order_of(run, Conjunction(term.local, (pair,)))
    found = consistent_pair(order, order.translated(pair))
    return None if found is None else order.lifted(found)


class _Search(NamedTuple):
    """A walk over the cuts at which a term may hold, and the rest of the term."""

    order: Projection
    walk: LexicalWalk
    rest: CompiledCondition


def _search(condition: Condition, terms: list[Conjunction], budget: Budget) -> Detection:
    """Search for a cut at which one of `terms` holds. The searches take turns, so that each makes progress."""
    searches = [_search_of(condition.run, term, budget, len(terms)) for term in terms]
    turns = deque((search, search.walk.blocks()) for search in searches)
    while turns:
        search, blocks = turns.popleft()
        block = next(blocks, None)
        if block is None:
            continue
        holds = search.rest.at_cuts(block)
        if holds.any():
            place = int(holds.argmax())
            states = search.order.lifted(tuple(block[place].tolist()))
            return _holds(POSSIBLY, condition, LATTICE, states, budget.examined - len(block) + place + 1)
        turns.append((search, blocks))
    complete = all(search.walk.complete for search in searches)
    return Detection(
        question=POSSIBLY,
        expression=condition.text,
        answer=False if complete else None,
        method=LATTICE,
        examined=budget.examined,
        stopped_by=None if complete else BY_CUTS_MAX,
    )


def _search_of(run: TraceRun, term: Conjunction, budget: Budget, count: int) -> _Search:
    order = _order_of(run, term)
    rest = order.translated(joined(AND, term.joined))
    return _Search(order, LexicalWalk(order, budget, count), CompiledCondition(rest))


def _order_of(run: TraceRun, term: Conjunction) -> Projection:
    """Return the cuts at which a term may hold."""
    order = sliced(projected(run, term.tables), term.local)
    assert order is not None, "the least cut at which its local parts hold is in it"
    return order


def definitely(
    trace: Trace,
    expression: str,
    cuts_max: int = LEVEL_CUTS_MAX,
    states: KnownStates | None = None,
    progress: Progress | None = None,
) -> Detection:
    """Return whether every observer of the run of `trace` sees the condition hold."""
    condition = Condition(TraceRun(trace), expression, states)
    run = condition.run
    if condition.at(run.bottom):
        return _holds(DEFINITELY, condition, CONJUNCTIVE, run.bottom)
    known = _definitely_by_parts(condition)
    if known is not None:
        return known
    order = projected(run, tables_of(condition.part))
    program = CompiledCondition(order.translated(condition.part))
    stopped_by = BY_CUTS_MAX
    dive_cuts_max = min(cuts_max, _DIVE_CUTS_MAX, _DIVE_STEPS_MAX // size_of(condition.part))
    steps, certain, examined, met = dive(order, program, dive_cuts_max)
    if not certain and examined < cuts_max:
        walk = LevelWalk(order, program, cuts_max, progress)
        steps, certain = walk.path()
        examined, met = max(examined, walk.examined), walk.met
        stopped_by = BY_MEMORY if walk.level_too_large else BY_CUTS_MAX
    if steps is None and certain:
        assert met is not None, "the condition holds at a cut that every path meets"
        return _holds(DEFINITELY, condition, LATTICE, order.lifted(met), examined)
    return Detection(
        question=DEFINITELY,
        expression=expression,
        answer=False if certain else None,
        method=LATTICE,
        examined=examined,
        path=None if steps is None else _events(run, order.lifted_steps(steps)),
        stopped_by=None if certain else stopped_by,
    )


def _definitely_by_parts(condition: Condition) -> Detection | None:
    """Return the answer if the conditions on single processes give it, without a search.

    A path that avoids one part of a conjunction avoids all of it. An observer that sees one alternative hold sees the
    condition hold.
    """
    run, whole = condition.run, condition.conjunction
    if whole.local and unavoidable(run, whole.local) is None:
        steps = guarded_path(run, whole.local)
        path = None if steps is None else _events(run, steps)
        return Detection(question=DEFINITELY, expression=condition.text, answer=False, method=CONJUNCTIVE, path=path)
    for term in condition.terms:
        if not term.joined and (stretches := unavoidable(run, term.local)) is not None:
            states = run.bottom
            for process, stretch in stretches.items():
                # When all have begun, no stretch has ended: each end has all beginnings in its past.
                states = run.with_past(states, process, stretch.first)
            return _holds(DEFINITELY, condition, CONJUNCTIVE, states)
    return None


def _holds(question: str, condition: Condition, method: str, states: States, examined: int = 0) -> Detection:
    assert condition.at(states), "the condition holds at the cut that shows it"
    return Detection(
        question=question,
        expression=condition.text,
        answer=True,
        method=method,
        examined=examined,
        cut=condition.run.positions(states),
        values=condition.values_at(states),
    )


def _events(run: TraceRun, steps: Steps) -> tuple[EventRef, ...]:
    reached = list(run.bases)
    events: list[EventRef] = []
    for process in steps:
        reached[process] += 1
        events.append(EventRef(run.processes[process], reached[process]))
    return tuple(events)
