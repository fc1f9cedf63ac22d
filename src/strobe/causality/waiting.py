"""Which processes can proceed at a cut (G2): the least fixed point of its waits, in linear time.

Each wait, and each wait nested in one, is a *term*. A term counts its missing members: one if any suffices, else all.
When a process is found able to proceed, every term with it as a member counts down. A term that misses nothing is met:
it counts down in the term above it, or lets its process proceed. So every member is visited once.
"""

from collections.abc import Iterator
from typing import Union

from strobe.causality.predicate_input import PredicateInput
from strobe.declarations import Waits

TermMember = Union[str, "_Term"]


class _Term:
    """The wait of a process, or a part of it. `above` is the term that it is a member of."""

    __slots__ = ("above", "any_suffices", "lacks", "members", "process")

    def __init__(self, process: str, waits: Waits, above: "_Term | None") -> None:
        self.process = process
        self.above = above
        self.any_suffices = waits.any_suffices
        self.members: tuple[TermMember, ...] = ()
        self.lacks = 1 if waits.any_suffices else len(waits.processes)


class WaitGraph:
    """All waits at a cut, and the processes that can still proceed; `times_out`: whether any wait does."""

    def __init__(self, facts: PredicateInput, *, timeouts_end: bool) -> None:
        self._facts = facts
        self._timeouts_end = timeouts_end
        self._terms: dict[str, _Term] = {}
        self._behind: dict[str, list[_Term]] = {}
        self._met: list[_Term] = []
        self.times_out = False
        found: list[str] = []
        for process, declaration in facts.declarations.items():
            if declaration.declared.waits is None:
                found.append(process)
            else:
                self._terms[process] = self._term(process, declaration.declared.waits)
        self.can_proceed = self._least(found)

    @property
    def stuck(self) -> list[str]:
        """The processes that cannot proceed."""
        return sorted(self._terms.keys() - self.can_proceed)

    def in_vain(self, process: str) -> set[str]:
        """Return the processes that `process` waits for and that will not meet its wait."""
        return {name for name in _names(self._terms[process]) if not self._is_met(process, name)}

    def needed(self, process: str) -> set[str]:
        """Return as few of these as show that the wait is not met: of an "all" wait, the first unmet member."""
        found: set[str] = set()
        open_: list[TermMember] = [self._terms[process]]
        while open_:
            member = open_.pop()
            if isinstance(member, str):
                found.add(member)
            else:
                unmet = (one for one in member.members if not self._is_met(process, one))
                open_ += unmet if member.any_suffices else [next(unmet)]
        return found

    def _term(self, process: str, waits: Waits) -> _Term:
        """Return the term of a wait, with its nested terms."""
        outermost = _Term(process, waits, None)
        open_ = [(waits, outermost)]
        for part, term in open_:  # grows during the loop
            members: list[TermMember] = []
            for one in part.processes:
                if isinstance(one, Waits):
                    inner = _Term(process, one, term)
                    open_.append((one, inner))
                    members.append(inner)
                else:
                    members.append(one)
            term.members = tuple(members)
            self._count(part, term)
        return outermost

    def _count(self, waits: Waits, term: _Term) -> None:
        """Count down members that are met already, and register the others."""
        for member in term.members:
            if isinstance(member, str):
                if self._facts.need_not_count(term.process, member):
                    term.lacks -= 1
                else:
                    self._behind.setdefault(member, []).append(term)
        self.times_out |= waits.times_out
        if not term.members or (waits.times_out and self._timeouts_end):
            term.lacks = 0
        if term.lacks <= 0:
            self._met.append(term)

    def _least(self, found: list[str]) -> set[str]:
        """Return the processes that can proceed: those `found`, and all whose wait they meet, transitively."""
        self._let_proceed(found)
        for process in found:  # grows during the loop
            for term in self._behind.get(process, ()):
                self._count_off(term)
            self._let_proceed(found)
        return set(found)

    def _let_proceed(self, found: list[str]) -> None:
        while self._met:
            term = self._met.pop()
            if term.above is None:
                found.append(term.process)
            else:
                self._count_off(term.above)

    def _count_off(self, term: _Term) -> None:
        term.lacks -= 1
        if term.lacks == 0:
            self._met.append(term)

    def _is_met(self, process: str, member: TermMember) -> bool:
        if isinstance(member, str):
            return member in self.can_proceed or self._facts.need_not_count(process, member)
        return member.lacks <= 0


def _names(term: _Term) -> Iterator[str]:
    """Yield the processes that are members of a term, or of a nested term."""
    open_: list[TermMember] = [term]
    while open_:
        member = open_.pop()
        if isinstance(member, str):
            yield member
        else:
            open_ += member.members
