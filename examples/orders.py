"""Shops ask a bank before they sell. Open requests are part of the state: each is answered once, whatever fails."""

import msgspec

from strobe import Channel, Process, Reply, Request, Requests, System, reply


class Charge(Request):
    customer: str
    amount: int


class Charged(Reply):
    paid: int


class Ledger(msgspec.Struct):
    requests: Requests = msgspec.field(default_factory=Requests)
    sold: int = 0
    refused: list[str] = []


class Shop(Process):
    def __init__(self):
        self.ledger = Ledger()

    def start(self, ctx):
        ctx.set_timer("customer", 0.002)

    def timer(self, ctx, name):
        amount = ctx.random.randint(1, 9)
        self.ledger.requests.ask(ctx, f"{ctx.name}->bank", Charge("alice", amount), about=f"{amount} for alice")
        ctx.set_timer("customer", 0.002)

    def receive(self, ctx, channel, message):
        asked = self.ledger.requests.answered(message)
        if message.paid:
            self.ledger.sold += message.paid
        else:
            self.ledger.refused.append(asked.about)

    def capture(self):
        return self.ledger

    def restore(self, state):
        self.ledger = state


class Bank(Process):
    def __init__(self):
        self.accounts = {"alice": 2_000}

    def receive(self, ctx, channel, message):
        paid = message.amount if message.amount <= self.accounts[message.customer] else 0
        self.accounts[message.customer] -= paid
        reply(ctx, channel, message, Charged(paid))

    def capture(self):
        return self.accounts

    def restore(self, state):
        self.accounts = state


def books(states, messages):
    """Return all money, and how many open requests are neither in flight nor answered by a reply in flight."""
    ledgers = [state for state in states.values() if isinstance(state, Ledger)]
    paid = sum(message.paid for message in messages if isinstance(message, Charged))
    money = states["bank"]["alice"] + paid + sum(ledger.sold for ledger in ledgers)
    return money, sum(len(ledger.requests.open) for ledger in ledgers) - len(messages)


shops = System(
    {"north": Shop(), "south": Shop(), "bank": Bank()},
    [Channel("north", "bank"), Channel("bank", "north"), Channel("south", "bank"), Channel("bank", "south")],
    [Charge, Charged],
    conserved=books,
)
