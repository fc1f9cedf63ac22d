"""Possibly and definitely (G3): did a condition hold at some consistent cut, did every observer see it hold?

- *possibly*: there is a consistent cut at which the condition holds. The answer comes with such a cut.
- *definitely*: every way from the beginning to the end, through consistent cuts and one event at a time, passes a cut
  at which it holds. Where that is not so, the answer comes with a way that avoids it.

Conditions on one process each, joined by `and`, take polynomial time (`conjunctive.py`); so does *possibly* of several
such, joined by `or`. For others the lattice is searched, which may have exponentially many cuts: after `cuts_max` of
them, or where a level of it takes more memory than may be, the question is undecided, and that is the answer.
"""

from typing import TYPE_CHECKING

import msgspec

from strobe.causality.expressions import parse
from strobe.causality.lattice.conditions import Condition
from strobe.causality.lattice.conjunctive import Tables, least_cut, unavoidable
from strobe.causality.lattice.enumeration import CUTS_MAX, LexicalWalk, Progress
from strobe.causality.lattice.paths import LevelWalk, Steps, dive, guarded_path
from strobe.causality.lattice.run import Run, States
from strobe.causality.lattice.variables import KnownStates, Variables
from strobe.causality.trace import EventRef, Trace

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

POSSIBLY, DEFINITELY = "possibly", "definitely"
CONJUNCTIVE, LATTICE = "conjunctive", "lattice"
BY_CUTS_MAX, BY_MEMORY = "max-cuts", "memory"

LEVEL_CUTS_MAX = 10_000_000
"""For *definitely*, which keeps what it looks at: eight bytes for each cut, and one level whole (LEVEL_BYTES_MAX)."""
_DIVE_CUTS_MAX = 20_000


class Detection(msgspec.Struct, frozen=True, kw_only=True):
    """The answer to a question about all consistent cuts; `answer` is None where it is undecided.

    `cut` is one at which the condition holds, `values` what its names stand for there. `path` are all events in an
    order in which it never holds. `method` says how that was found, `examined` how many cuts were looked at for it.
    `stopped_by` says why it is undecided: BY_CUTS_MAX, or BY_MEMORY, against which looking at more cuts does not help.
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
    condition = _condition(trace, expression, states)
    searched: list[Condition] = []
    for alternative in condition.alternatives():
        tables, whole = alternative.local_tables()
        found = least_cut(condition.run, tables)
        if found is not None and whole:
            return _holds(POSSIBLY, expression, condition, CONJUNCTIVE, found)
        if found is not None:  # else what it says of single processes never holds together, let alone the rest
            searched.append(alternative)
    if not searched:
        return Detection(question=POSSIBLY, expression=expression, answer=False, method=CONJUNCTIVE)
    walk = LexicalWalk(condition.run, cuts_max, progress)
    for block in walk.blocks():
        holds = _any_holds(searched, block)
        if holds.any():
            place = int(holds.argmax())
            examined = walk.examined - len(block) + place + 1
            return _holds(POSSIBLY, expression, condition, LATTICE, tuple(block[place].tolist()), examined)
    return Detection(
        question=POSSIBLY,
        expression=expression,
        answer=False if walk.complete else None,
        method=LATTICE,
        examined=walk.examined,
        stopped_by=None if walk.complete else BY_CUTS_MAX,
    )


def definitely(
    trace: Trace,
    expression: str,
    cuts_max: int = LEVEL_CUTS_MAX,
    states: KnownStates | None = None,
    progress: Progress | None = None,
) -> Detection:
    """Return whether every observer of the run of `trace` sees the condition hold."""
    condition = _condition(trace, expression, states)
    run = condition.run
    if condition.at(run.bottom):
        return _holds(DEFINITELY, expression, condition, CONJUNCTIVE, run.bottom)
    tables, whole = condition.local_tables()
    if whole:
        return _definitely_all(expression, condition, tables)
    stopped_by = BY_CUTS_MAX
    steps, certain, examined, met = dive(run, condition, min(cuts_max, _DIVE_CUTS_MAX))
    if not certain and examined < cuts_max:
        walk = LevelWalk(run, condition, cuts_max, progress)
        steps, certain = walk.path()
        examined, met = max(examined, walk.examined), walk.met
        stopped_by = BY_MEMORY if walk.level_too_large else BY_CUTS_MAX
    if steps is None and certain:
        assert met is not None, "it holds at whatever cannot be avoided"
        return _holds(DEFINITELY, expression, condition, LATTICE, met, examined)
    return Detection(
        question=DEFINITELY,
        expression=expression,
        answer=False if certain else None,
        method=LATTICE,
        examined=examined,
        path=_events(run, steps),
        stopped_by=None if certain else stopped_by,
    )


def _definitely_all(expression: str, condition: Condition, tables: Tables) -> Detection:
    run = condition.run
    stretches = unavoidable(run, tables)
    if stretches is None:
        path = _events(run, guarded_path(run, tables))
        return Detection(question=DEFINITELY, expression=expression, answer=False, method=CONJUNCTIVE, path=path)
    states = run.bottom
    for process, stretch in stretches.items():
        # When all have begun, none has ended: each end has all beginnings in its past.
        states = run.with_past(states, process, stretch.first)
    return _holds(DEFINITELY, expression, condition, CONJUNCTIVE, states)


def _condition(trace: Trace, expression: str, states: KnownStates | None) -> Condition:
    node = parse(expression)
    run = Run(trace)
    variables = Variables(run, expression, states)
    variables.check(node)
    return Condition(run, node, variables)


def _any_holds(conditions: list[Condition], cuts: "npt.NDArray[np.int64]") -> "npt.NDArray[np.bool_]":
    holds = conditions[0].at_cuts(cuts)
    for condition in conditions[1:]:
        holds = holds | condition.at_cuts(cuts)
    return holds


def _holds(
    question: str, expression: str, condition: Condition, method: str, states: States, examined: int = 0
) -> Detection:
    assert condition.at(states), "a witness is a witness"
    return Detection(
        question=question,
        expression=expression,
        answer=True,
        method=method,
        examined=examined,
        cut=condition.run.positions(states),
        values=condition.values_at(states),
    )


def _events(run: Run, steps: Steps | None) -> tuple[EventRef, ...] | None:
    if steps is None:
        return None
    reached = list(run.bases)
    events: list[EventRef] = []
    for process in steps:
        reached[process] += 1
        events.append(EventRef(run.processes[process], reached[process]))
    return tuple(events)
