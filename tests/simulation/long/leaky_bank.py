"""A bank with a branch that loses one coin of every transfer, as an example of a violation."""

from bank import Branch, Transfer, total

from strobe import Channel, System


class Leaky(Branch):
    def receive(self, ctx, channel, transfer):
        self.account.balance += transfer.amount - 1


class Robbed(Branch):
    """Loses a coin at the start, so that every snapshot shows it."""

    def start(self, ctx):
        super().start(ctx)
        self.account.balance -= 1


class Faulty(Branch):
    def receive(self, ctx, channel, transfer):
        raise RuntimeError("the vault is locked")


def bank_of(branch):
    pair = {"a": branch(200), "b": branch(200)}
    return System(pair, [Channel("a", "b"), Channel("b", "a")], [Transfer], conserved=total)


leaky = bank_of(Leaky)
robbed = bank_of(Robbed)
faulty = bank_of(Faulty)
