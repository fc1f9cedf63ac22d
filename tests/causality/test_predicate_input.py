"""Predicate inputs: what a stable predicate examines, read from the stored bytes of a snapshot by its rules (G2)."""

import msgspec
import pytest
from tests.storage.samples import declaring, frame, sample

from strobe.causality.predicate_input import PredicateInput, ProcessDeclaration, predicate_input_of
from strobe.declarations import NOTHING, Declared, MessageRule, Waits
from strobe.errors import SnapshotCorrupt
from strobe.protocol.values.frames import InFlight

RULES = (
    MessageRule("type", "Fork", grants=True),
    MessageRule("type", "Ask", requests=True),
    MessageRule("type", "Relay", grants=("for",), requests=("by",), references=("what", "by")),
)
FORK, ASK = {"type": "Fork"}, {"type": "Ask"}
RELAY = {"type": "Relay", "for": "c", "by": ["d", ["e", 5]], "what": "x"}


def in_flight(*messages, consumed=0, **declared):
    """Return the predicate input of a snapshot with these messages in flight from a to b."""
    snapshot = declaring(sample(1), **declared)
    snapshot.fragments["b"].in_flight["a->b"] = (InFlight(frame(4, *messages), consumed),)
    snapshot.fragments["c"].in_flight["b~>c"] = ()
    return predicate_input_of(snapshot)


def test_an_input_has_the_declarations_and_the_pending_timers():
    facts = in_flight(FORK, a=Declared(Waits.all("b"), active=False))
    assert facts.declarations == {
        "a": ProcessDeclaration(Declared(Waits.all("b"), active=False), 1),
        "b": ProcessDeclaration(),
        "c": ProcessDeclaration(),
    }
    assert facts.declarations["a"].awake
    assert facts.declares
    assert not in_flight(FORK).declares


def test_messages_are_only_counted_if_their_receiver_recorded_no_rule():
    facts = in_flight(FORK, ASK, RELAY, a=Declared(messages=RULES))
    assert facts == PredicateInput(
        {
            "a": ProcessDeclaration(Declared(messages=RULES), 1),
            "b": ProcessDeclaration(NOTHING),
            "c": ProcessDeclaration(NOTHING),
        },
        {"a->b": 3},
        frozenset("b"),
        sends_to={"a": {"b"}, "b": {"a", "c"}},
    )


def test_grants_requests_and_references_in_flight_are_read_from_the_bytes():
    facts = in_flight(FORK, ASK, 5, {"type": "Other", "what": "y"}, b=Declared(messages=RULES))
    assert facts.granted == {("b", "a")}
    assert facts.asked == {("a", "b")}
    assert facts.carried == set()


def test_fields_of_a_message_may_name_other_processes():
    facts = in_flight(RELAY, b=Declared(messages=RULES))
    assert facts.granted == {("b", "c")}
    assert facts.asked == {("d", "b"), ("e", "b")}
    assert facts.carried == {"x", "d", "e"}


def test_consumed_messages_of_a_frame_are_not_in_flight():
    assert in_flight(FORK, ASK, consumed=1, b=Declared(messages=RULES)).granted == set()
    assert in_flight(FORK, ASK, consumed=1, b=Declared(messages=RULES)).asked == {("a", "b")}


def test_a_body_that_is_no_array_is_named():
    snapshot = declaring(sample(1), b=Declared(messages=RULES))
    (first, *_) = snapshot.fragments["b"].in_flight["a->b"]
    broken = msgspec.structs.replace(first.frame, body=b"\xc1")
    snapshot.fragments["b"].in_flight["a->b"] = (InFlight(broken),)
    with pytest.raises(SnapshotCorrupt, match="the frame of message 3 of channel a->b cannot be decoded"):
        predicate_input_of(snapshot)
