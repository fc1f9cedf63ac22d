"""Processes with a KeyedState run in the simulator as they do live."""

from pathlib import Path
from typing import Any

import msgspec

from strobe import Channel, KeyedState, Process, System
from strobe.causality.trace import parse_trace
from strobe.protocol.process.first_view import first_view
from strobe.simulation import Faults, Recorder, Replay, World, all_checkers, compare_at_cut
from strobe.storage import Store
from strobe.storage.content.keyed_state_blobs import keyed_items
from strobe.storage.content.state_codec import decode_snapshot


class Payment(msgspec.Struct):
    account: str
    amount: int


class Account(msgspec.Struct):
    balance: int


class Branch(Process):
    """Accounts that pay accounts of the next branch. An empty account is closed; a payment opens it again."""

    def __init__(self, name: str) -> None:
        self.accounts: KeyedState[Account] = KeyedState(Account)
        self.accounts.update({f"{name}{number}": Account(10) for number in range(5)})

    def start(self, ctx: Any) -> None:
        ctx.set_timer("pay", 0.001)

    def timer(self, ctx: Any, name: str) -> None:
        ctx.set_timer("pay", ctx.random.uniform(0.001, 0.003))
        if not self.accounts:
            return
        name = ctx.random.choice(list(self.accounts))
        account = self.accounts[name]
        amount = ctx.random.randint(1, account.balance)
        account.balance -= amount
        if account.balance:
            self.accounts[name] = account
        else:
            del self.accounts[name]
        ctx.send(ctx.outputs[0], Payment(name, amount))

    def receive(self, ctx: Any, channel: str, message: Payment) -> None:
        balance = self.accounts[message.account].balance if message.account in self.accounts else 0
        self.accounts[message.account] = Account(balance + message.amount)

    def capture(self) -> KeyedState[Account]:
        return self.accounts

    def restore(self, state: KeyedState[Account]) -> None:
        self.accounts = state


def total(states: dict[str, KeyedState[Account]], messages: list[Payment]) -> int:
    held = sum(account.balance for accounts in states.values() for account in accounts.values())
    return held + sum(message.amount for message in messages)


def bank() -> System:
    channels = [Channel("a", "b"), Channel("b", "c"), Channel("c", "a")]
    return System({name: Branch(name) for name in "abc"}, channels, [Payment], conserved=total)


def test_snapshots_of_keyed_states_are_right_and_are_read_back(tmp_path: Path) -> None:
    """E4: changes after the cut do not show in a snapshot, and each snapshot conserves the money."""
    store = Store.create(tmp_path / "store")
    system = bank()
    world = World(system, 5, faults=Faults.parse("all"), store=store, checkers=all_checkers())
    world.run(12)
    assert world.violations == []
    assert len(world.committed) >= 12
    for name in world.committed:
        snapshot = store.load(name)
        decoded = decode_snapshot(system, snapshot)
        assert total(decoded.states, decoded.messages) == 150
        for process, fragment in snapshot.fragments.items():
            assert fragment.state is not None
            items = {key: msgspec.msgpack.decode(raw, type=Account) for key, raw in keyed_items(fragment.state)}
            assert items == dict(decoded.states[process])


def test_replay_gives_the_same_keyed_states() -> None:
    """R4: iteration and encoding do not depend on how a state was built."""
    recorder = Recorder(first_view(bank()), 3, "full")
    world = World(bank(), 3, recorder=recorder)
    taken: list[Any] = []
    world.on_commit = taken.append
    world.run(5)
    trace = parse_trace(recorder.text().splitlines(keepends=True))
    replay = Replay(bank(), trace)
    replay.run(trace.events())
    for name, node in world.nodes.items():
        assert replay.has_state(name, node.capture())
    for snapshot in taken:
        assert compare_at_cut(bank(), trace, snapshot) == []
