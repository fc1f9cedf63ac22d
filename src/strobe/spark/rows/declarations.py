"""The rows of `activity`, `declared_waits` and `declared_references`: the input of stable predicates (G2)."""

from collections.abc import Iterator
from typing import Any

from strobe.declarations import Waits
from strobe.spark.rows.committed_snapshot import CommittedSnapshot
from strobe.spark.schema.arrow import Rows

TermRow = tuple[int, bool, bool, str | None, int | None]
"""Term number, whether any member suffices, whether it times out, and the member: a process or a nested term."""


def activity(snapshot: CommittedSnapshot, process: str | None) -> Rows:
    """A row for each process of the view."""
    facts = snapshot.predicate_input()
    waiting = dict.fromkeys(facts.declarations, 0)
    for channel in snapshot.view.channels:
        if channel.target in waiting:
            waiting[channel.target] += facts.in_flight.get(channel.id, 0)
    rows = [
        (snapshot.id, name, declaration.declared.active, declaration.timers, waiting[name])
        for name, declaration in facts.declarations.items()
        if process in (None, name)
    ]
    yield from _chunks(rows)


def declared_waits(snapshot: CommittedSnapshot, process: str | None) -> Rows:
    """A row for each member of each term of a wait."""
    facts = snapshot.predicate_input()
    rows = [
        (snapshot.id, name, *member, member[3] is not None and facts.need_not_count(name, member[3]))
        for name, declaration in facts.declarations.items()
        if declaration.declared.waits is not None and process in (None, name)
        for member in terms(declaration.declared.waits)
    ]
    yield from _chunks(rows)


def declared_references(snapshot: CommittedSnapshot, process: str | None) -> Rows:
    """A row for each reference, and for each holder without references."""
    facts = snapshot.predicate_input()
    rows: list[tuple[Any, ...]] = [
        (snapshot.id, keeper, holder, name)
        for keeper, declaration in facts.declarations.items()
        if process in (None, keeper)
        for holder, names in declaration.declared.references.items()
        for name in names or (None,)
    ]
    if process is None:
        rows += [(snapshot.id, None, None, name) for name in sorted(facts.carried)]
    yield from _chunks(rows)


def terms(waits: Waits) -> Iterator[TermRow]:
    """Yield the members of a wait and of its nested terms, which are numbered from 0; skip terms without members."""
    numbered = [waits]
    for number, term in enumerate(numbered):
        for member in term.processes:
            if isinstance(member, str):
                yield number, term.any_suffices, term.times_out, member, None
            else:
                # A nested term without members gets no row, and counts as met.
                yield number, term.any_suffices, term.times_out, None, len(numbered)
                numbered.append(member)


def _chunks(rows: list[tuple[Any, ...]]) -> Rows:
    if rows:
        yield [list(column) for column in zip(*rows, strict=True)], 0
