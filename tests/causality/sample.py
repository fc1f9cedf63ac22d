"""A small valid trace with a fifo and an unordered channel, for tests to read and change."""

from strobe.causality.trace_lines import Internal, Line, Receive, Record, Send, header_of
from strobe.protocol.values.view import ChannelSpec, View

VIEW = View(1, ("a", "b"), (ChannelSpec("a->b", "a", "b"), ChannelSpec("b->a", "b", "a", "unordered")))
HEADER = header_of(VIEW, seed=7, system="bank.py:bank")
LINES: list[Line] = [
    Internal("a", 1, "start"),  # line 2 of the file
    Send("a", 1, "a->b", 1),
    Send("a", 1, "a->b", 2),
    Record("b", 0, "s1"),
    Receive("b", 1, "a->b", 1),
    Send("b", 1, "b->a", 1),
    Record("a", 1, "s1"),
    Receive("b", 2, "a->b", 2),  # line 9
    Send("b", 2, "b->a", 2),
    Receive("a", 2, "b->a", 2),
    Receive("a", 3, "b->a", 1),  # line 12
    Send("a", 3, "a->b", 3),
    Receive("b", 3, "a->b", 3),  # line 14
    Record("a", 3, "s2"),
    Record("b", 3, "s2"),  # line 16
]
