"""Keyed state: frozen at the cut in constant time, written afterwards in full or as a delta (E4, E5).

A process keeps its entries in a `KeyedState` and returns it from `capture`. Its host does the rest:

    frozen = state.freeze()                        at the cut, before anything else happens
        for piece in frozen.slices(since): ...         later, one slice per event-loop iteration; since=None: everything
        state.forget_changes(before=frozen.number)     after the snapshot has committed: later deltas build on this one

In: entries that a process sets. Out: segments: all entries of a moment, or those that changed since another one.
`segments.py` defines the format, `values.py` how a value is stored, `entries.py` the entries and their copy-on-write,
`frozen.py` writes them, and `state.py` is the mapping that a process uses.
"""

from strobe.keyed_state.frozen import Frozen
from strobe.keyed_state.segments import Key, merged_entries, merged_parts
from strobe.keyed_state.state import KeyedState

__all__ = ["Frozen", "Key", "KeyedState", "merged_entries", "merged_parts"]
