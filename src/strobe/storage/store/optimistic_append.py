"""Appends entries concurrently with other writers: read, decide, append, and retry on a conflict.

An entry is valid only for the log that its writer has read: one entry later, a snapshot that could be removed may be
the newest or pinned. Entry n is created only if absent (S1), so a decision based on entries 0..n-1 is appended as n or
not at all.
"""

from collections.abc import Callable

from strobe.errors import LogConflict
from strobe.protocol.values.log_entries import Entry, Term
from strobe.storage.entries.log_state import LogState
from strobe.storage.store.store import Store

Decide = Callable[[LogState], Entry | None]
"""Returns the entry to append in this state, or None if there is nothing to do. Raises if it is not allowed."""


def append_when(store: Store, decide: Decide) -> int | None:
    """Append the entry that `decide` returns for the current log, and return its position; None if it returns None.

    After a conflict, read the other writer's entry and decide again.
    """
    while True:
        state = store.state()
        position, entry = state.next_position, decide(state)
        if entry is None:
            return None
        try:
            store.append(entry, position)
        except LogConflict:
            continue
        return position


def begin_term(store: Store, coordinator: str, at_us: int) -> int:
    """Begin a new term, as a coordinator does before any other write, and return it. The last one to do so leads.

    `coordinator` describes where it runs, for people. The call can be retried after a StoreError: a term that nobody
    leads does no harm.
    """
    append_when(store, lambda _: Term(store.term + 1, coordinator, at_us))
    store.lead(store.term)
    return store.term
