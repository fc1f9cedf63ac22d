"""The matrix of P4: which checker catches which mutant."""

import msgspec

from strobe.invariants import GlobalState
from strobe.process import Channel, Context, Process, System
from strobe.protocol import PROTOCOLS
from strobe.simulation.checkers import all_checkers
from strobe.simulation.faults import Faults
from strobe.simulation.mutants.catalog import Mutant
from strobe.simulation.world import DEFAULT_POLICY, World

SEEDS = range(6)
"""Enough seeds that every checker which can catch a mutant does: the matrix is the union over these runs."""


class Coins(msgspec.Struct):
    amount: int


class Purse(msgspec.Struct):
    coins: int
    paid: int = 0


class Payer(Process):
    """Sends coins around, if it has an output."""

    def __init__(self, coins: int = 100, pause_s: float = 0.001) -> None:
        self.purse = Purse(coins)
        self.pause_s = pause_s

    def start(self, ctx: Context) -> None:
        self._pay_later(ctx)

    def _pay_later(self, ctx: Context) -> None:
        ctx.set_timer("pay", ctx.random.uniform(0.5 * self.pause_s, 1.5 * self.pause_s))

    def timer(self, ctx: Context, name: str) -> None:
        amount = ctx.random.randint(0, self.purse.coins // 8)
        self.purse.coins -= amount
        if ctx.outputs:
            self.purse.paid += 1
            ctx.send(ctx.random.choice(ctx.outputs), Coins(amount))
        else:
            self.purse.coins += amount
        self._pay_later(ctx)

    def receive(self, ctx: Context, channel: str, message: Coins) -> None:
        self.purse.coins += message.amount

    def capture(self) -> Purse:
        return self.purse

    def restore(self, state: Purse) -> None:
        self.purse = state


def every_payment_is_counted(snapshot: GlobalState) -> bool:
    """The payments that the purses count are those sent on the channels."""
    counted: int = sum(purse.paid for purse in snapshot.states.values())
    return counted == sum(snapshot.sent.values())


def payers(mutant: Mutant) -> System:
    """Return the system for a mutant: three processes that pay each other; for barriers, a diamond."""
    barriers = PROTOCOLS[mutant.protocol].barriers
    names = "abcd" if barriers else "abc"
    pairs = ["ab", "ac", "bd", "cd"] if barriers else [p + q for p in names for q in names if p != q]
    conserved = (
        (lambda states, coins: sum(s.coins for s in states.values()) + sum(c.amount for c in coins))
        if mutant.conserved
        else None
    )
    # Nothing flows back to the first process of the diamond, so it needs enough coins. And no queue may grow for ever,
    # or no barrier would get through it.
    processes = {name: Payer(10**12 if name == "a" else 100, 0.0025) if barriers else Payer() for name in names}
    invariants = [every_payment_is_counted] if mutant.invariants else []
    channels = [Channel(*pair) for pair in pairs]
    return System(processes, channels, [Coins], mutant.protocol, conserved, invariants=invariants)


def run_mutant(mutant: Mutant, seed: int) -> set[str]:
    """Run one mutant once; return the names of the checkers that reported a violation."""
    world = World(
        payers(mutant),
        seed,
        faults=Faults.parse(mutant.faults),
        policy=msgspec.structs.replace(DEFAULT_POLICY, overlapping_max=mutant.overlapping_max, timeout_us=200_000),
        checkers=all_checkers(),
        protocol_class=mutant.protocol_class,
        node_class=mutant.node_class,
        lifecycle_class=mutant.lifecycle_class,
        skip_verification=True,
    )
    if mutant.reorder:
        world.network.reorder_everything()
    world.run(8, us_max=1_500_000)
    # A violation found by a channel's own end is left out: the mutants test the checkers.
    return {violation.checker for violation in world.violations} & {checker.name for checker in world.checkers}


def caught_by(mutant: Mutant, seeds: range = SEEDS) -> set[str]:
    """Return the names of the checkers that catch `mutant` in at least one run."""
    return set().union(*(run_mutant(mutant, seed) for seed in seeds))
