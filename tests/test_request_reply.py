"""Requests and replies, with a context that only records what is sent."""

from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from strobe import Reply, Request, Requests, Waits, reply
from strobe.declarations import message_rules
from strobe.errors import UsageError


class Price(Request):
    item: str


class Offer(Reply):
    amount: int


class Plain(msgspec.Struct, tag=True):
    pass


class Sent(SimpleNamespace):
    """A context that records what is sent."""

    def __init__(self) -> None:
        super().__init__(name="a", messages=[])

    def send(self, channel: str, message: Any) -> None:
        self.messages.append((channel, message))


def asked(*items: str) -> tuple[Requests, list[Any]]:
    """Return the open requests for prices, and the messages that were sent."""
    requests, ctx = Requests(), Sent()
    for item in items:
        requests.ask(ctx, "a->b", Price(item), about={"item": item})  # type: ignore[arg-type]
    return requests, [message for _, message in ctx.messages]


def answer_to(request: Any, amount: int = 1) -> Any:
    """Return the reply of b, and check where it goes."""
    ctx = Sent()
    reply(ctx, "a->b", request, Offer(amount))  # type: ignore[arg-type]
    ((channel, message),) = ctx.messages
    assert channel == "b->a"
    return message


def test_a_reply_closes_the_request_that_it_answers_once() -> None:
    requests, (tea, milk) = asked("tea", "milk")
    late = answer_to(milk, 7)
    found = requests.answered(late)
    assert found is not None
    assert (found.channel, found.about, late.amount) == ("a->b", {"item": "milk"}, 7)
    assert requests.answered(late) is None
    assert list(requests.open) == [tea.request_number]


def test_what_is_no_reply_closes_nothing() -> None:
    requests, (tea,) = asked("tea")
    assert requests.answered(Plain()) is None
    assert requests.answered(tea) is None
    assert len(requests.open) == 1


def test_the_reply_to_a_withdrawn_request_answers_nothing() -> None:
    requests, (tea,) = asked("tea")
    withdrawn = requests.withdraw(tea.request_number)
    assert withdrawn is not None
    assert withdrawn.about == {"item": "tea"}
    assert requests.answered(answer_to(tea)) is None
    assert requests.withdraw(tea.request_number) is None


def test_numbers_continue_after_a_restore() -> None:
    """A number that is used twice would let an old reply answer a new request."""
    requests, (tea,) = asked("tea")
    restored = msgspec.msgpack.decode(msgspec.msgpack.encode(requests), type=Requests)
    assert restored == requests
    restored.answered(answer_to(tea))
    assert restored.ask(Sent(), "a->b", Price("milk")) == tea.request_number + 1  # type: ignore[arg-type]


def test_a_request_that_cannot_be_sent_is_not_open() -> None:
    class Full(Sent):
        def send(self, channel: str, message: Any) -> None:
            raise UsageError("too much")

    requests = Requests()
    with pytest.raises(UsageError, match="too much"):
        requests.ask(Full(), "a->b", Price("tea"))  # type: ignore[arg-type]
    assert requests == Requests()


def test_a_frozen_request_can_be_asked_again() -> None:
    class Fixed(Price, frozen=True):
        pass

    requests, ctx, fixed = Requests(), Sent(), Fixed("tea")
    numbers = [requests.ask(ctx, "a->b", fixed) for _ in range(2)]  # type: ignore[arg-type]
    assert numbers == [message.request_number for _, message in ctx.messages] == [1, 2]


def test_a_reply_may_take_another_channel() -> None:
    ctx = Sent()
    reply(ctx, "one", Price("tea", request_number=3), Offer(1), on="two")  # type: ignore[arg-type]
    assert ctx.messages == [("two", Offer(1, request_number=3))]


@pytest.mark.parametrize(
    ("request_", "answer", "problem"),
    [
        (Plain(), Offer(1), "process 'a' replies to a Plain from 'a->b', which is no strobe.Request"),
        (Price("tea"), Offer(1), "a Price from 'a->b', which was not sent by Requests.ask"),
        (Price("tea", request_number=1), Plain(), "a Plain is no reply; let its class inherit from strobe.Reply"),
    ],
)
def test_a_reply_needs_a_request_and_a_reply(request_: Any, answer: Any, problem: str) -> None:
    with pytest.raises(UsageError, match=problem):
        reply(Sent(), "a->b", request_, answer)  # type: ignore[arg-type]


def test_asking_needs_a_request() -> None:
    with pytest.raises(UsageError, match=r"a Plain is no request; let its class inherit from strobe\.Request"):
        Requests().ask(Sent(), "a->b", Plain())  # type: ignore[arg-type]


def test_G2_open_requests_and_messages_declare_waits() -> None:
    requests, (tea, _) = asked("tea", "milk")
    requests.ask(Sent(), "a->c", Price("tea"))  # type: ignore[arg-type]
    assert requests.waits() == Waits.all("b", "c")
    assert requests.waits(times_out=True) == Waits.all("b", "c", times_out=True)
    requests.answered(answer_to(tea))
    assert requests.waits() == Waits.all("b", "c")
    assert Requests().waits() is None
    assert [(rule.requests, rule.grants) for rule in message_rules([Price, Offer])] == [(True, False), (False, True)]
