"""The examples in docs/outside.md run, and do what the text promises."""

import re
import tomllib
from pathlib import Path

import msgspec
import pytest

from strobe.process import Context, System
from strobe.runtime import IngressLog
from strobe.runtime.connectors.system_file import SinkTable, SourceTable

TEXT = (Path(__file__).parents[3] / "docs" / "outside.md").read_text("utf-8")


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", TEXT, re.DOTALL)


class Emitting(Context):
    """A context that emits into a sink."""

    def __init__(self, sink):
        self.emit = sink.emit

    send = set_timer = cancel_timer = now = snapshot = emit = None


@pytest.fixture
def in_scratch(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def run(code: str) -> dict:
    names: dict = {"__name__": "outside_example"}
    exec(code, names)
    return names


def test_R2_the_example_reads_orders_and_releases_each_once(in_scratch):
    shop: System = run(blocks("python")[0])["shop"]
    (in_scratch / "orders.jsonl").write_text('{"item": "tea", "count": 2}\n{"item": "jam", "count": 1}\n')
    source, sink, till = shop.sources["orders"], shop.sinks["audit"], shop.processes["till"]
    source.open(0)
    sink.restore(0, epoch=1)
    (first,) = source.poll(1)
    till.receive(Emitting(sink), "orders", first)
    state, read_position, written_position = till.capture(), source.position, sink.position
    sink.prepare(written_position)
    for order in source.poll(10):
        till.receive(Emitting(sink), "orders", order)
    till.restore(state)
    source.open(read_position)
    sink.restore(written_position, epoch=2, origin=1)
    for order in source.poll(10):
        till.receive(Emitting(sink), "orders", order)
    sink.prepare(sink.position)
    sink.release(sink.position)
    assert (in_scratch / "audit.jsonl").read_text() == '{"item":"tea","sold":2}\n{"item":"jam","sold":3}\n'
    source.close()
    sink.close()


def test_the_example_of_the_ingress_log_runs(in_scratch):
    names = run(blocks("python")[1])
    names["door"].close()
    source = IngressLog("ingress.log", process="till")
    source.open(0)
    assert source.poll(10) == [{"item": "tea", "count": 2}]
    assert source.position == names["position"]
    source.close()


def test_the_tables_of_the_example_fit_a_system_file():
    (text,) = blocks("toml")
    tables = tomllib.loads(text)
    assert msgspec.convert(tables["source"]["orders"], SourceTable).malformed == "stop"
    assert msgspec.convert(tables["sink"]["audit"], SinkTable).path == "audit.jsonl"
