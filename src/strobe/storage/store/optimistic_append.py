"""Entries of people and of retention, beside whoever else writes the log: read, decide, append, and again if beaten.

An entry is right only for the log that its writer has read: a snapshot that may be removed now may be the newest, or be
pinned, one entry later. Entry n is created only if absent (S1), so what was decided on entries 0..n-1 is appended as n
or not at all.
"""

from collections.abc import Callable

from strobe.errors import LogConflict
from strobe.protocol.values.log_entries import Entry, Term
from strobe.storage.entries.log_state import LogState
from strobe.storage.store.store import Store

Decide = Callable[[LogState], Entry | None]
"""Returns the entry that is right for what the log says, None where there is nothing to do, or raises why not."""


def append_when(store: Store, decide: Decide) -> int | None:
    """Append what `decide` makes of the log as it is then, and return its position; None where it makes nothing of it.

    Each conflict is another writer's success, and is followed by reading that and deciding anew.
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
    """Begin a new term, as a coordinator does before it writes anything else, and return it; the last to do so leads.

    `coordinator` says for people where it runs. After a StoreError it can be tried again: a term that was begun and is
    not led by anybody does no harm.
    """
    append_when(store, lambda _: Term(store.term + 1, coordinator, at_us))
    store.lead(store.term)
    return store.term
