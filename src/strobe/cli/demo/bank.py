"""The bank of the demo: four branches that transfer money without end. The total never changes."""

from collections.abc import Mapping, Sequence

import msgspec

from strobe.process import Channel, Context, Process, System

BRANCHES = ("a", "b", "c", "d")
BALANCE = 200
PAYMENTS = 10
TOTAL = BALANCE * len(BRANCHES)


class Transfer(msgspec.Struct, tag=True):
    """A message: a transfer in flight."""

    amount: int


class Account(msgspec.Struct):
    """The state of a branch."""

    balance: int
    transfers: int = 0


class Branch(Process):
    """Pays small amounts to random branches, a few every millisecond: some are in flight at most times."""

    def __init__(self, balance: int) -> None:
        self.account = Account(balance)

    def start(self, ctx: Context) -> None:
        ctx.set_timer("pay", ctx.random.uniform(0.0005, 0.0015))

    def timer(self, ctx: Context, name: str) -> None:
        for _ in range(PAYMENTS):
            if self.account.balance > 0 and ctx.outputs:
                self._pay(ctx, ctx.random.randint(1, max(1, self.account.balance // 20)))
        ctx.set_timer("pay", ctx.random.uniform(0.0005, 0.0015))

    def receive(self, ctx: Context, channel: str, message: Transfer) -> None:
        self.account.balance += message.amount

    def leave(self, ctx: Context) -> None:
        self._pay(ctx, self.account.balance)

    def capture(self) -> Account:
        return self.account

    def restore(self, state: Account) -> None:
        self.account = state

    def _pay(self, ctx: Context, amount: int) -> None:
        self.account.balance -= amount
        self.account.transfers += 1
        ctx.send(ctx.random.choice(ctx.outputs), Transfer(amount))


def total(accounts: Mapping[str, Account], transfers: Sequence[Transfer]) -> int:
    """Return the total money: in the branches, and in flight between them."""
    return sum(account.balance for account in accounts.values()) + sum(transfer.amount for transfer in transfers)


def make_bank() -> System:
    return System(
        processes={name: Branch(BALANCE) for name in BRANCHES},
        channels=[Channel(source, target) for source in BRANCHES for target in BRANCHES if source != target],
        messages=[Transfer],
        conserved=total,
    )


bank = make_bank()
