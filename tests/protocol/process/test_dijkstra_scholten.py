"""The rules of Dijkstra and Scholten one by one, and termination detection by several processes (G4)."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from strobe.errors import ProtocolViolation, UsageError
from strobe.protocol.process.dijkstra_scholten import (
    AnnounceTermination,
    DijkstraScholten,
    EventEnded,
    SendSignal,
    SignalReceived,
    WorkReceived,
    WorkSent,
)

IDLE, ACTIVE = EventEnded(False), EventEnded(True)


def play(detector, *events):
    return [effect for event in events for effect in detector.handle(event)]


def test_DS1_the_first_message_engages_and_its_answer_is_owed():
    leaf = DijkstraScholten("b", root=False)
    assert play(leaf, WorkReceived("a->b"), ACTIVE) == []
    assert leaf.engaged


def test_DS2_a_message_to_an_engaged_process_is_answered_at_once():
    leaf = DijkstraScholten("b", root=False)
    assert play(leaf, WorkReceived("a->b"), ACTIVE, WorkReceived("c->b")) == [SendSignal("c->b")]
    assert play(DijkstraScholten("a", root=True), WorkReceived("c->a")) == [SendSignal("c->a")]


def test_DS3_the_parent_is_answered_when_idle_and_all_answers_have_come():
    inner = DijkstraScholten("b", root=False)
    assert play(inner, WorkReceived("a->b"), WorkSent(), WorkSent(), IDLE, SignalReceived("c->b"), IDLE) == []
    assert play(inner, SignalReceived("d->b"), ACTIVE) == []
    assert play(inner, IDLE) == [SendSignal("a->b")]
    assert not inner.engaged


def test_DS4_the_root_announces_the_end_once():
    root = DijkstraScholten("a", root=True)
    assert play(root, WorkSent(), IDLE) == []
    assert play(root, SignalReceived("b->a"), IDLE) == [AnnounceTermination()]
    assert play(root, IDLE, WorkReceived("b->a"), IDLE) == [SendSignal("b->a")]
    assert play(root, WorkSent(), IDLE, SignalReceived("b->a"), IDLE) == [AnnounceTermination()]


def test_DS4_a_root_that_is_active_again_announces_its_next_end_too():
    root = DijkstraScholten("a", root=True)
    assert play(root, IDLE) == [AnnounceTermination()]
    assert play(root, ACTIVE) == []
    assert not root.state.terminated
    assert play(root, IDLE) == [AnnounceTermination()]
    assert play(root, IDLE) == []


def test_a_root_that_does_nothing_has_ended_at_once():
    assert play(DijkstraScholten("a", root=True), IDLE) == [AnnounceTermination()]


def test_a_process_that_begins_by_itself_is_refused_unless_it_is_the_root():
    for events in ([WorkSent()], [ACTIVE]):
        with pytest.raises(UsageError, match=r"'b' .* before any message has come to it; .* make it the root"):
            play(DijkstraScholten("b", root=False), *events)


def test_a_signal_that_answers_nothing_is_named():
    with pytest.raises(ProtocolViolation, match="channel a->b, at b: a signal has come that answers no message"):
        play(DijkstraScholten("b", root=False), SignalReceived("a->b"))


NAMES = "abcd"


@given(st.data())
def test_termination_is_announced_once_and_never_early_in_any_order(data):
    """Messages and signals in flight are in one bag each and taken in any order; active processes act at random."""
    detectors = {name: DijkstraScholten(name, root=name == "a") for name in NAMES}
    active, work, signals, left, announced = {"a"}, [], [], 12, 0
    while active or work or signals:
        moves = [("act", name) for name in sorted(active)] + [("work", i) for i in range(len(work))]
        kind, which = data.draw(st.sampled_from(moves + [("signal", i) for i in range(len(signals))]))
        if kind == "act":
            name, effects = which, []
            for target in data.draw(st.lists(st.sampled_from(NAMES), max_size=min(left, 2))):
                left -= 1
                work.append(f"{name}->{target}")
                effects += detectors[name].handle(WorkSent())
            active.discard(name)
        elif kind == "work":
            channel = work.pop(which)
            name, effects = channel[-1], detectors[channel[-1]].handle(WorkReceived(channel))
            active.add(name)
        else:
            channel = signals.pop(which)
            name, effects = channel[-1], detectors[channel[-1]].handle(SignalReceived(channel))
        effects += detectors[name].handle(EventEnded(name in active))
        signals += [f"{name}->{effect.channel[0]}" for effect in effects if isinstance(effect, SendSignal)]
        if AnnounceTermination() in effects:
            announced += 1
            assert not active
            assert not work
    assert announced == 1
