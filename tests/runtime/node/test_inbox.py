"""The inbox: what waits is taken in the order in which it came, but for what is held back."""

from collections import deque

from hypothesis import given
from hypothesis import strategies as st

from strobe.protocol import Frame
from strobe.runtime.node.inbox import Inbox, QueuedItem

CHANNELS = ("a->c", "b->c", None)
steps = st.lists(
    st.one_of(
        st.tuples(st.just("append"), st.sampled_from(CHANNELS)),
        st.tuples(st.sampled_from(["hold", "resume"]), st.sampled_from(CHANNELS[:2])),
        st.tuples(st.just("take"), st.none()),
    ),
    max_size=60,
)


class Line:
    """The same as one line, from which what is held back is taken out, and to whose end it returns."""

    def __init__(self):
        self.line, self.held = deque(), {}

    def append(self, item):
        self.held.get(item[0], self.line).append(item)

    def hold(self, channel):
        if channel not in self.held:
            self.held[channel] = deque(item for item in self.line if item[0] == channel)
            self.line = deque(item for item in self.line if item[0] != channel)

    def resume(self, channel):
        self.line.extend(self.held.pop(channel, ()))

    def waiting_on(self, channel):
        return [number for name, number in (*self.held.get(channel, ()), *self.line) if name == channel]


@given(steps)
def test_V3_items_are_taken_in_order_and_held_ones_go_to_the_end(steps):
    inbox, line, taken = Inbox(), Line(), []
    for number, (step, channel) in enumerate(steps):
        if step == "append":
            frame = Frame(number, 1, b"")
            inbox.append(QueuedItem(True, lambda number=number: taken.append(number), channel, frame))
            line.append((channel, number))
        elif step == "take":
            waiting = inbox.next()
            assert (waiting is None) == (not line.line)
            if waiting is not None:
                assert inbox.take() is waiting
                waiting.action()
                assert taken[-1] == line.line.popleft()[1]
        else:
            getattr(inbox, step)(channel)
            getattr(line, step)(channel)
        assert len(inbox) == len(line.line)
        for name in CHANNELS[:2]:
            assert [item.frame.first_ordinal for item in inbox.frames(name)] == line.waiting_on(name)


def test_nothing_waits_in_an_inbox_that_was_cleared():
    inbox = Inbox()
    inbox.append(QueuedItem(True, lambda: None, "a->c"))
    inbox.hold("a->c")
    inbox.append(QueuedItem(True, lambda: None))
    inbox.clear()
    assert not inbox
    assert inbox.next() is None
    assert not inbox.held
