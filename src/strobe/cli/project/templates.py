"""The files that `strobe init` writes: a small system that runs, its tests, its description, and a readme."""

SYSTEM = '''\
"""Two branches of a bank that pay each other. Change it into your system."""

import msgspec

from strobe import Channel, Process, System


class Money(msgspec.Struct, tag=True):
    """A message."""

    amount: int


class Account(msgspec.Struct):
    """The state of a branch."""

    balance: int


class Branch(Process):
    def __init__(self, balance):
        self.account = Account(balance)

    def start(self, ctx):
        ctx.set_timer("pay", 0.01)

    def timer(self, ctx, name):
        if ctx.outputs and self.account.balance > 0:
            self.pay(ctx, ctx.random.randint(1, self.account.balance))
        ctx.set_timer("pay", ctx.random.uniform(0.005, 0.015))

    def receive(self, ctx, channel, money):
        self.account.balance += money.amount

    def leave(self, ctx):
        self.pay(ctx, self.account.balance)

    def pay(self, ctx, amount):
        self.account.balance -= amount
        ctx.send(ctx.random.choice(ctx.outputs), Money(amount))

    def capture(self):
        return self.account

    def restore(self, state):
        self.account = state


def total(accounts, transfers):
    """All money, at the branches and in flight: the same in every snapshot."""
    return sum(account.balance for account in accounts.values()) + sum(money.amount for money in transfers)


system = System(
    processes={"a": Branch(100), "b": Branch(100)},
    channels=[Channel("a", "b"), Channel("b", "a")],
    messages=[Money],
    conserved=total,
)
'''

TESTS = '''\
"""Tests of the system. `strobe_simulate` and `live_system` are fixtures that Strobe brings along."""

from system import total


def test_no_money_is_lost_under_faults(strobe_simulate):
    strobe_simulate("system.py:system", seeds=20)


def test_no_money_is_lost_when_a_branch_is_killed(live_system):
    live = live_system("system.py:system")
    live.snapshot()
    live.kill("a")
    after = live.snapshot()
    assert total(after.states, after.messages) == 200
'''

SETTINGS = """\
# The same system for several hosts: one coordinator, and one node for each process.
store = "./snapshots"
messages = ["system:Money"]
conserved = "system:total"

[coordinator]
listen = "127.0.0.1:7400"
api = "127.0.0.1:7480"
interval_s = 1.0

[process.a]
class = "system:Branch"
args = {balance = 100}

[process.b]
class = "system:Branch"
args = {balance = 100}

[[channel]]
from = "a"
to = "b"

[[channel]]
from = "b"
to = "a"
"""

README = """\
# A system with Strobe

| file | what it is |
|---|---|
| `system.py` | the processes, their channels and messages |
| `test_system.py` | its tests: under simulated faults, and live with a process killed |
| `system.toml` | the same system for several hosts |

```
strobe simulate system.py:system --seeds 20                 # under faults, with every checker on
strobe up system.py:system --store ./snapshots --create     # live; Ctrl-C stops it; later without --create
strobe snapshot show latest --store ./snapshots             # every state, and every message in flight
pytest                                                      # the tests
```

On several hosts: `strobe coordinator system.toml --create` on one, `strobe node system.toml --name a` on another.
"""

FILES = {"system.py": SYSTEM, "test_system.py": TESTS, "system.toml": SETTINGS, "README.md": README}
