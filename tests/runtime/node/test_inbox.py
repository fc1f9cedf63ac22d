"""The inbox: items are taken in order of arrival, except those of held channels."""

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


class Model:
    """A model of the inbox with one queue: items of a held channel leave it, and return to its end."""

    def __init__(self):
        self.queue, self.held = deque(), {}

    def append(self, item):
        self.held.get(item[0], self.queue).append(item)

    def hold(self, channel):
        if channel not in self.held:
            self.held[channel] = deque(item for item in self.queue if item[0] == channel)
            self.queue = deque(item for item in self.queue if item[0] != channel)

    def resume(self, channel):
        self.queue.extend(self.held.pop(channel, ()))

    def waiting_on(self, channel):
        return [number for name, number in (*self.held.get(channel, ()), *self.queue) if name == channel]


@given(steps)
def test_V3_items_are_taken_in_order_and_held_ones_go_to_the_end(steps):
    inbox, model, taken = Inbox(), Model(), []
    for number, (step, channel) in enumerate(steps):
        if step == "append":
            frame = Frame(number, 1, b"")
            inbox.append(QueuedItem(True, lambda number=number: taken.append(number), channel, frame))
            model.append((channel, number))
        elif step == "take":
            waiting = inbox.next()
            assert (waiting is None) == (not model.queue)
            if waiting is not None:
                assert inbox.take() is waiting
                waiting.action()
                assert taken[-1] == model.queue.popleft()[1]
        else:
            getattr(inbox, step)(channel)
            getattr(model, step)(channel)
        assert len(inbox) == len(model.queue)
        for name in CHANNELS[:2]:
            assert [item.frame.first_ordinal for item in inbox.frames(name)] == model.waiting_on(name)


def test_a_cleared_inbox_is_empty():
    inbox = Inbox()
    inbox.append(QueuedItem(True, lambda: None, "a->c"))
    inbox.hold("a->c")
    inbox.append(QueuedItem(True, lambda: None))
    inbox.clear()
    assert not inbox
    assert inbox.next() is None
    assert not inbox.held
