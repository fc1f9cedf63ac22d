"""A shop with its own event loop, and its till: a program that is not a `Process`.

    strobe up examples/own_loop.toml --create   # the coordinator, and the till, which is a `Process`
    python examples/own_loop.py                 # the shop: any asyncio program takes part as a `Node`

The shop sells its goods and sends the money to the till; the till sends some of it back, for new goods. If either is
killed and restarted, nothing is sold or paid twice: goods and money together are always worth 1000.
"""

import asyncio
import contextlib
import sys
from pathlib import Path

import msgspec

from strobe import Node, Process
from strobe.errors import TransportError


class Money(msgspec.Struct, tag=True):
    amount: int


class Shelf(msgspec.Struct):
    goods: int = 1000


class Till(Process):
    def __init__(self):
        self.cash = Money(0)

    def receive(self, ctx, channel, money):
        self.cash.amount += money.amount
        if self.cash.amount >= 50:
            self.cash.amount -= 40
            ctx.send("till->shop", Money(40))

    def capture(self):
        return self.cash

    def restore(self, state):
        self.cash = state


class Shop:
    def __init__(self):
        self.shelf = Shelf()

    async def run(self, coordinator=None):
        how = {"capture": lambda: self.shelf, "restore": self.restore, "coordinator": coordinator}
        async with Node.connect(Path(__file__).with_suffix(".toml"), name="shop", **how) as node:
            customers = asyncio.create_task(self.serve(node))
            async for _, transfers in node:  # one list per frame; it ends when the system is stopped
                self.shelf.goods += sum(money.amount for money in transfers)
            customers.cancel()

    async def serve(self, node):
        with contextlib.suppress(TransportError):  # the system was stopped
            while True:
                await asyncio.sleep(0.001)  # a customer comes
                price = min(7, self.shelf.goods)
                with node.atomic():  # goods and money change together: no snapshot is taken in between
                    self.shelf.goods -= price
                    room = node.send("shop->till", Money(price))
                await room  # back-pressure: if the till is slow, customers wait

    def restore(self, state):
        self.shelf = state


def worth(states, transfers):
    """The conserved quantity, checked on every snapshot."""
    return states["shop"].goods + states["till"].amount + sum(money.amount for money in transfers)


if __name__ == "__main__":
    asyncio.run(Shop().run(*sys.argv[1:]))
