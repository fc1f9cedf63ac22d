"""Live: a rollback to before the first snapshot, with input, output, messages, timers and random numbers (R1, R2)."""

import json

from tests.live.support.harness import running, wait_until

from strobe.process import Random
from strobe.storage import Store
from strobe.storage.content.state_codec import decode_snapshot

ORDERS = 100
SHOP = """
import enum

import msgspec

from strobe import Channel, Process, System
from strobe.runtime import FileSink, FileSource


class Unit(enum.Enum):
    PIECE = "piece"


class Order(msgspec.Struct):
    item: str
    unit: Unit


class Receipt(msgspec.Struct, tag=True):
    number: int


class Thanks(msgspec.Struct, tag=True):
    number: int


class Sales(msgspec.Struct):
    sold: int = 0
    answered: int = 0
    ticks: int = 0


class Till(Process):
    def __init__(self):
        self.sales = Sales()
        self.forgotten_by_capture = 0

    def start(self, ctx):
        ctx.set_timer("tick", 0)

    def timer(self, ctx, name):
        self.sales.ticks += 1
        ctx.set_timer("tick", 0.01)

    def receive(self, ctx, channel, message):
        if isinstance(message, Order) and message.unit is Unit.PIECE:
            self.sales.sold += 1
            self.forgotten_by_capture += 1
            ctx.emit([message.item, self.forgotten_by_capture, ctx.random.getrandbits(32)])
            ctx.send("till->clerk", Receipt(self.sales.sold))
        elif isinstance(message, Thanks):
            self.sales.answered += 1

    def capture(self):
        return self.sales

    def restore(self, state):
        assert isinstance(state, Sales)
        self.sales = state


class Clerk(Till):
    def receive(self, ctx, channel, message):
        if isinstance(message, Receipt):
            self.sales.sold += 1
            ctx.send("clerk->till", Thanks(message.number))


shop = System(
    processes={"till": Till(), "clerk": Clerk()},
    channels=[Channel("till", "clerk"), Channel("clerk", "till")],
    messages=[Receipt, Thanks],
    sources={"orders": FileSource("orders.jsonl", process="till", type=Order)},
    sinks={"audit": FileSink("audit.jsonl", process="till")},
)
"""


def test_R2_before_the_first_snapshot_a_rollback_reads_all_input_again(tmp_path, monkeypatch):
    """R1, R2: records and messages have the types that the process declares; timers and random numbers start over."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "shop.py").write_text(SHOP)
    orders = ({"item": str(number), "unit": "piece"} for number in range(ORDERS))
    (tmp_path / "orders.jsonl").write_text("".join(json.dumps(order) + "\n" for order in orders))
    audit = tmp_path / "audit.jsonl"
    with running(tmp_path, f"{tmp_path / 'shop.py'}:shop", ["till", "clerk"], "--interval", "0") as live:
        for epoch in (1, 2):  # the process that was not killed rolls back twice
            live.wait_progress(ORDERS)
            live.kill("clerk")
            assert live.wait_rolled_back(epoch).rollbacks[-1].restored is None
        wait_until("all orders to be reported", lambda: live.wait_taken() and _lines(audit) == ORDERS)
        snapshot = live.last_snapshot()
        assert live.supervisor.starts("till") == 1
    draws = Random(f"{Store.open(tmp_path / 'store').header.store}/till")
    assert [json.loads(line) for line in audit.read_text().splitlines()] == [
        [str(number), number + 1, draws.getrandbits(32)] for number in range(ORDERS)
    ]
    names: dict = {"__name__": "shop"}
    exec(SHOP, names)
    shop = decode_snapshot(names["shop"], snapshot)
    states, in_flight = shop.states, shop.messages
    receipts = sum(isinstance(message, names["Receipt"]) for message in in_flight)
    assert states["till"].sold == ORDERS == states["clerk"].sold + receipts
    assert states["till"].answered + len(in_flight) == ORDERS
    assert states["till"].ticks > 0


def _lines(path):
    return path.read_bytes().count(b"\n") if path.exists() else 0
