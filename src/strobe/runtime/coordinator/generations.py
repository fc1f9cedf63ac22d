"""Which snapshots are comparable: those with no join between them.

A joining process brings state of its own, so a conserved quantity changes: a new generation begins. A leaving process
hands over its state, so a leave changes nothing. A rollback returns to the generation of the restored snapshot; a
rollback to the beginning returns to generation 0.
"""

from strobe.storage import LogState


class Generations:
    """Follows the folded log. After starting from a checkpoint, earlier generations are unknown."""

    def __init__(self) -> None:
        self.generation = 0
        self._followed = 0
        self._epoch: int | None = None
        self._view = 0
        self._members: frozenset[str] = frozenset()
        self._highest = 0
        self._of: dict[str, int] = {}
        self._newest: str | None = None

    def follow(self, state: LogState) -> None:
        """Take in the entry that `state` has just taken in."""
        self._followed += 1
        view = state.view
        if self._epoch is None and state.next_position > 1:  # the snapshots before this entry are unknown
            self._epoch, self._newest, self.generation = state.epoch, state.newest_complete, self._another()
        elif state.epoch != self._epoch:
            self._epoch = state.epoch
            self.generation = self._generation_of(state.restored)
        elif view is not None and view.number != self._view and not self._members.issuperset(view.processes):
            self.generation = self._another()
        if view is not None and view.number != self._view:
            self._view, self._members = view.number, frozenset(view.processes)
        newest = state.newest_complete
        if newest is not None and newest != self._newest:
            self._newest = newest
            self._of.setdefault(newest, self.generation)
            if len(self._of) > 2 * len(state.committed) + 16:  # most of them were removed
                self._of = {name: self._of[name] for name in state.committed if name in self._of}

    def is_new(self, state: LogState) -> bool:
        """Return whether every log entry was followed, and generation 0 has no snapshot yet."""
        return self._followed == state.next_position and self.oldest(0, state) is None

    def of(self, snapshot: str) -> int:
        return self._of.get(snapshot, self.generation)

    def oldest(self, generation: int, state: LogState) -> str | None:
        """Return the oldest complete snapshot of a generation."""
        return next((name for name, of in self._of.items() if of == generation and name in state.committed), None)

    def _generation_of(self, restored: str | None) -> int:
        if restored is None:
            return 0
        return self._of[restored] if restored in self._of else self._another()

    def _another(self) -> int:
        self._highest += 1
        return self._highest
