"""State that processes share, found before a system runs (E13).

In: a system, and the source of its classes. Out: the objects that several processes would change.
`attribute_uses.py` finds what the methods of a class change, and `finding.py` which of that is not a process's own.
"""

from strobe.shared_state.finding import shared_state

__all__ = ["shared_state"]
