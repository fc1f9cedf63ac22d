"""Requests and replies between processes; open requests are part of the state, and so of every snapshot.

    class Balance(Request):                      # messages that ask, and messages that answer
        account: str
    class Amount(Reply):
        amount: int

    class State(msgspec.Struct):
        requests: Requests = msgspec.field(default_factory=Requests)

    def start(self, ctx):
        self.state.requests.ask(ctx, "shop->bank", Balance("alice"), about="order 17")

    def receive(self, ctx, channel, message):    # at the shop
        asked = self.state.requests.answered(message)   # asked.about == "order 17"

    def receive(self, ctx, channel, message):    # at the bank
        reply(ctx, channel, message, Amount(100))

Nothing waits: the reply is received like any message, and a snapshot may be taken between the two. After a rollback the
open requests are those of the snapshot, and each of them, or its reply, is in flight or at the process asked. So each
request is answered once. A handler that awaited its reply could not be captured, and could keep a snapshot from ever
completing (docs/decisions.md).
"""

from typing import Any

import msgspec

from strobe.declarations import Declares, Waits
from strobe.errors import UsageError
from strobe.process import Context, reverse_channel

__all__ = ["OpenRequest", "Reply", "Request", "Requests", "reply"]


class Request(msgspec.Struct, kw_only=True, tag=True):
    """A message that asks for a reply: subclass it. Its sender may declare that it waits for its receiver."""

    declares = Declares(requests=True)

    request_number: int = 0
    """Set by `Requests.ask`."""


class Reply(msgspec.Struct, kw_only=True, tag=True):
    """A message that answers a request: subclass it."""

    declares = Declares(grants=True)

    request_number: int = 0
    """That of the request; set by `reply`."""


class OpenRequest(msgspec.Struct, frozen=True):
    """A request that was sent on `channel` and is not answered. `about` is what the asking process noted with it."""

    channel: str
    about: Any = None


class Requests(msgspec.Struct):
    """The open requests of one process, by number. Keep it in the process's state."""

    open: dict[int, OpenRequest] = {}
    last_number: int = 0

    def ask(self, ctx: Context, channel: str, request: Any, about: Any = None) -> int:
        """Send `request` on `channel`, and return its number.

        `about` is returned with the reply: numbers, text, lists and dicts, which come back as they are after a restore.
        """
        if not isinstance(request, Request):
            raise UsageError(f"a {type(request).__name__} is no request; let its class inherit from strobe.Request")
        number = self.last_number + 1
        ctx.send(channel, msgspec.structs.replace(request, request_number=number))
        self.last_number = number
        self.open[number] = OpenRequest(channel, about)
        return number

    def answered(self, message: Any) -> OpenRequest | None:
        """Close the request that `message` answers, and return it.

        Return None if it answers none: it is no reply, or its request was withdrawn.
        """
        return self.open.pop(message.request_number, None) if isinstance(message, Reply) else None

    def withdraw(self, number: int) -> OpenRequest | None:
        """Close an open request, for example after a time-out, and return it. Its reply will answer nothing."""
        return self.open.pop(number, None)

    def waits(self, times_out: bool = False) -> Waits | None:
        """Return what `waits_for` may return: a wait for every process that was asked, or None if no request is open.

        The channels must have their default ids.
        """
        asked = dict.fromkeys(one.channel.partition("->")[2] for one in self.open.values())
        return Waits.all(*asked, times_out=times_out) if asked else None


def reply(ctx: Context, channel: str, request: Any, answer: Any, on: str = "") -> None:
    """Answer `request`, which was received on `channel`. It may be answered later, too: keep both until then.

    The answer is sent on the reverse channel, or `on` another one to the process that asked.
    """
    if not isinstance(request, Request) or not request.request_number:
        problem = "was not sent by Requests.ask" if isinstance(request, Request) else "is no strobe.Request"
        raise UsageError(
            f"process {ctx.name!r} replies to a {type(request).__name__} from {channel!r}, which {problem}"
        )
    if not isinstance(answer, Reply):
        raise UsageError(f"a {type(answer).__name__} is no reply; let its class inherit from strobe.Reply")
    ctx.send(on or reverse_channel(channel), msgspec.structs.replace(answer, request_number=request.request_number))
