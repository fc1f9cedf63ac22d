"""A bank of four branches that send each other money forever. Balances and transfers in flight always sum to 800."""

import msgspec

from strobe import Channel, Process, System


class Transfer(msgspec.Struct, tag=True):
    amount: int


class Account(msgspec.Struct):
    balance: int
    transfers: int = 0


class Branch(Process):
    """Pays a random amount to a random branch every millisecond or so."""

    def __init__(self, balance):
        self.account = Account(balance)

    def start(self, ctx):
        ctx.set_timer("pay", ctx.random.uniform(0.0005, 0.0015))

    def timer(self, ctx, name):
        if self.account.balance > 0 and ctx.outputs:
            self.pay(ctx, ctx.random.randint(1, max(1, self.account.balance // 10)))
        ctx.set_timer("pay", ctx.random.uniform(0.0005, 0.0015))

    def receive(self, ctx, channel, transfer):
        self.account.balance += transfer.amount

    def leave(self, ctx):
        self.pay(ctx, self.account.balance)

    def pay(self, ctx, amount):
        self.account.balance -= amount
        self.account.transfers += 1
        ctx.send(ctx.random.choice(ctx.outputs), Transfer(amount))

    def capture(self):
        return self.account

    def restore(self, state):
        self.account = state


def total(accounts, transfers):
    return sum(a.balance for a in accounts.values()) + sum(t.amount for t in transfers)


names = ("a", "b", "c", "d")
bank = System(
    processes={name: Branch(200) for name in names},
    channels=[Channel(p, q) for p in names for q in names if p != q],
    messages=[Transfer],
    conserved=total,
)
bank_unordered = System(
    processes={name: Branch(200) for name in names},
    channels=[Channel(p, q, kind="unordered") for p in names for q in names if p != q],
    messages=[Transfer],
    protocol="lai-yang",
    conserved=total,
)
