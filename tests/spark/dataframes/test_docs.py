"""The examples of docs/spark.md work as written."""

import re
from collections import defaultdict
from pathlib import Path

import msgspec
import pytest
from pyspark.sql import DataFrame, SparkSession
from tests.spark.generate import good_snapshots
from tests.spark.stores import store_with

from strobe.protocol.values.fragment import MSGPACK, Snapshot
from strobe.spark import tables as read_tables

PAGE = Path(__file__).parents[3] / "docs" / "spark.md"

Row = tuple[object, ...]


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", PAGE.read_text("utf-8"), re.DOTALL | re.MULTILINE)


def balances(snapshot: Snapshot) -> dict[str, int | None]:
    """Return the balance of each process; SQL sees no balance in an opaque state."""
    return {
        process: msgspec.msgpack.decode(fragment.state.data)["balance"] if fragment.state.encoding == MSGPACK else None
        for process, fragment in snapshot.fragments.items()
        if fragment.state
    }


def in_flight(snapshot: Snapshot) -> dict[str, list[int]]:
    amounts: dict[str, list[int]] = defaultdict(list)
    for fragment in snapshot.fragments.values():
        for channel, items in fragment.in_flight.items():
            for item in items:
                messages = msgspec.msgpack.decode(item.frame.body)[item.consumed :]
                amounts[channel] += [message["amount"] for message in messages]
    return amounts


def money_by_channel(snapshot: Snapshot) -> list[Row]:
    amounts = in_flight(snapshot)
    return [
        (str(snapshot.id), name, len(amounts[name]), sum(amounts[name])) for name in sorted(amounts) if amounts[name]
    ]


def total(snapshot: Snapshot) -> int:
    return sum(balance or 0 for balance in balances(snapshot).values()) + sum(map(sum, in_flight(snapshot).values()))


def test_the_queries_of_the_page_give_the_values_of_the_snapshots(spark: SparkSession, tmp_path: Path) -> None:
    snapshots = list(good_snapshots(71, 12))
    read_tables(spark, store_with(tmp_path / "store", snapshots).url)
    by_process, by_channel, totals = ([tuple(row) for row in spark.sql(query).collect()] for query in blocks("sql"))
    assert by_process == [(str(s.id), *item) for s in snapshots for item in sorted(balances(s).items())]
    assert by_channel == [row for snapshot in snapshots for row in money_by_channel(snapshot)]
    assert totals == [(str(snapshot.id), total(snapshot)) for snapshot in snapshots]


def test_the_example_of_the_page_runs(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    store_with(tmp_path / "snapshots", good_snapshots(72, 1))
    monkeypatch.chdir(tmp_path)
    example, sources = blocks("python")
    names: dict[str, object] = {}
    exec(example, names)
    exec(sources, names)
    assert capsys.readouterr().out.startswith("000001-00000001-coordinator holds self-consistent, signer unknown\n")
    assert isinstance(names["stream"], DataFrame)
    assert names["stream"].isStreaming
