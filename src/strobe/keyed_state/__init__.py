"""State kept key by key: frozen at the cut in constant time, and written afterwards, whole or as what changed (E4, E5).

A process keeps its entries in a `KeyedState` and returns it from `capture`. Its host does the rest:

    frozen = state.freeze()                        at the cut, before anything else happens
    for piece in frozen.slices(since): ...         later, a piece a turn; None: everything
    state.forget_changes(before=frozen.number)     when the snapshot has committed: deltas refer to this one from now on

`segments.py` has the format, `values.py` says what becomes of a value, `entries.py` keeps entries and what is needed to
see them as they were, `frozen.py` writes them, and `state.py` is the mapping that a process uses.
"""

from strobe.keyed_state.frozen import Frozen
from strobe.keyed_state.segments import Key, merged_entries, merged_parts
from strobe.keyed_state.state import KeyedState

__all__ = ["Frozen", "Key", "KeyedState", "merged_entries", "merged_parts"]
