"""The user's API: random numbers whose state fits into a snapshot, channels, systems, and helpful errors."""

import copy
import random
from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.protocol.playbook import examples

from strobe.errors import UsageError
from strobe.process import Channel, Context, Process, Random, System, Waits

# The reference values of SplitMix64 for the seed 1234567.
SPLITMIX = [
    6457827717110365317,
    3203168211198807973,
    9817491932198370423,
    4593380528125082431,
    16408922859458223821,
]

DRAWS: dict[str, Callable[[random.Random], Any]] = {
    "random": lambda generator: generator.random(),
    "randrange": lambda generator: generator.randrange(10**30),
    "getrandbits": lambda generator: generator.getrandbits(100),
    "shuffle": lambda generator: generator.sample(range(20), 20),
    "choice": lambda generator: generator.choice("abcdef"),
    "bytes": lambda generator: generator.randbytes(11),
    "expovariate": lambda generator: generator.expovariate(2.0),
    "normalvariate": lambda generator: generator.normalvariate(0.0, 1.0),
    "gauss": lambda generator: generator.gauss(0.0, 1.0),
}


def test_random_numbers_are_those_of_splitmix64() -> None:
    generator = Random(1234567)
    assert [generator.getrandbits(64) for _ in SPLITMIX] == SPLITMIX


def test_the_same_seed_gives_the_same_numbers_on_every_machine() -> None:
    assert Random("7/alice").getrandbits(64) == 12984155400829458447
    assert Random("7/alice").getrandbits(64) != Random("7/bob").getrandbits(64)
    assert Random().state == 0


@pytest.mark.parametrize("draw", DRAWS.values(), ids=DRAWS.keys())
@examples(0.2)
@given(seed=st.integers(0, 2**64 - 1), before=st.integers(0, 3))
def test_the_whole_state_is_one_integer(draw: Callable[[random.Random], Any], seed: int, before: int) -> None:
    """R4: a generator restored from a snapshot continues exactly as the captured one does."""
    generator = Random(seed)
    for _ in range(before):
        draw(generator)
    restored = Random()
    restored.state = generator.state
    assert [draw(restored) for _ in range(3)] == [draw(generator) for _ in range(3)]


def test_state_can_be_taken_and_set_and_copied() -> None:
    generator = Random("seed")
    generator.random()
    state = generator.getstate()
    other, twin = Random(), copy.deepcopy(generator)
    other.setstate(state)
    assert other.random() == twin.random() == generator.random()
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(state)) == state


@given(st.integers(0, 2**64 - 1), st.integers(1, 300))
def test_random_bits_have_the_requested_number(seed: int, bits: int) -> None:
    assert 0 <= Random(seed).getrandbits(bits) < 2**bits


@given(st.integers(0, 2**64 - 1))
def test_random_is_in_the_unit_interval(seed: int) -> None:
    assert 0.0 <= Random(seed).random() < 1.0


def test_reseeding_starts_over() -> None:
    generator = Random("a")
    first = [generator.gauss(0, 1), generator.random()]
    generator.seed("a")
    assert [generator.gauss(0, 1), generator.random()] == first


# Channels


def test_a_channel_is_named_after_its_ends_unless_it_has_a_name() -> None:
    assert Channel("a", "b") == Channel("a", "b", "fifo", "a->b")
    assert Channel("a", "b", id="orders").id == "orders"
    assert Channel("a", "b", "unordered").kind == "unordered"


def test_two_channels_between_the_same_pair_differ_by_their_ids() -> None:
    assert Channel("a", "b", id="1") != Channel("a", "b", id="2")


# Processes


class Silent(Process):
    pass


def test_a_missing_method_of_a_process_is_named() -> None:
    process = Silent()
    context: Any = None
    with pytest.raises(NotImplementedError, match=r"Silent got a message on a->b but has no receive\(\)"):
        process.receive(context, "a->b", 1)
    with pytest.raises(NotImplementedError, match=r"Silent must have capture\(\)"):
        process.capture()
    with pytest.raises(NotImplementedError, match=r"Silent must have restore\(\)"):
        process.restore(b"")


def test_a_process_without_declarations_waits_for_none_and_may_act() -> None:
    process = Silent()
    context: Any = None
    process.start(context)
    process.timer(context, "tick")
    process.leave(context)
    assert process.waits_for() is None
    assert tuple(process.references()) == ()
    assert process.active()


def test_waits_are_for_all_or_for_any() -> None:
    assert Waits.all("a", "b") == Waits(("a", "b"), any_suffices=False)
    assert Waits.any("a", "b") == Waits(("a", "b"), any_suffices=True)


def test_a_context_cannot_be_made_without_a_host() -> None:
    with pytest.raises(TypeError, match="abstract"):
        Context()  # type: ignore[abstract]


# Systems


class Deposit(msgspec.Struct, tag=True):
    amount: int


class Withdraw(msgspec.Struct, tag=True):
    amount: int


class Untagged(msgspec.Struct):
    amount: int


class AlsoUntagged(msgspec.Struct):
    amount: int


def test_a_system_keeps_what_it_is_given() -> None:
    process = Silent()
    channel = Channel("a", "a")
    system = System({"a": process}, [channel])
    assert system.processes == {"a": process}
    assert system.channels == (channel,)
    assert (system.protocol, system.conserved, system.messages) == ("chandy-lamport", None, ())


def test_without_message_types_messages_are_plain_values() -> None:
    assert System({}, []).decoder.decode(msgspec.msgpack.encode([1, {"a": [2]}])) == [1, {"a": [2]}]


def test_with_one_message_type_messages_are_of_it() -> None:
    system = System({}, [], messages=[Untagged])
    assert system.decoder.decode(msgspec.msgpack.encode([Untagged(3)])) == [Untagged(3)]


def test_several_message_types_are_distinguished_by_their_tags() -> None:
    sent = [Deposit(1), Withdraw(2), Deposit(3)]
    assert System({}, [], messages=[Deposit, Withdraw]).decoder.decode(msgspec.msgpack.encode(sent)) == sent


def test_indistinguishable_message_types_are_refused_with_advice() -> None:
    with pytest.raises(UsageError, match="Give each a tag"):
        System({}, [], messages=[Untagged, AlsoUntagged])


def test_an_object_that_is_not_a_process_is_refused_by_name() -> None:
    with pytest.raises(UsageError, match=r"process 'a' is a dict; subclass strobe\.Process"):
        System({"a": {}}, [])  # type: ignore[dict-item]


MISSHAPEN: dict[str, tuple[Callable[[], object], str]] = {
    "a class": (lambda: System({"a": Silent}, []), r"process 'a' is the class Silent; give an instance: Silent\(\)"),
    "a list of processes": (lambda: System([Silent()], []), "`processes` is a list; give a dict of instances by name"),
    "a tuple": (lambda: System({}, [("a", "b")]), r"the channel \('a', 'b'\) is a tuple; write Channel\('a', 'b'\)"),
    "a text": (lambda: System({}, ["a->b"]), r"the channel 'a->b' is a str; write Channel\('a', 'b'\)"),
    "one channel": (lambda: System({}, Channel("a", "b")), r"`channels` is Channel, not a list; write channels=\["),
    "one type": (lambda: System({}, [], Deposit), r"`messages` is Deposit, not a list; write messages=\[Transfer\]"),
    "a message": (lambda: System({}, [], [Deposit(1)]), r"the message type Deposit\(.*\) is a value; .*type: Deposit"),
}


@pytest.mark.parametrize(("make", "problem"), MISSHAPEN.values(), ids=MISSHAPEN.keys())
def test_a_wrong_argument_is_refused_with_what_to_write(make: Callable[[], object], problem: str) -> None:
    """E13: arguments of the wrong kind."""
    with pytest.raises(UsageError, match=problem):
        make()
