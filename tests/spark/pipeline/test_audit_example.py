"""examples/audit.py runs from top to bottom on the store of a bank, with the right results (D1, G1)."""

import runpy
import sys
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from strobe.simulation import World
from strobe.storage import Store

EXAMPLES = Path(__file__).parents[3] / "examples"


def test_the_audit_runs_as_it_is(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    bank = runpy.run_path(str(EXAMPLES / "bank.py"))["bank"]
    world = World(bank, 1, store=Store.create(tmp_path / "store"))
    world.run(6)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["audit.py", str(tmp_path / "store")])
    cells = runpy.run_path(str(EXAMPLES / "audit.py"))
    printed = capsys.readouterr().out
    assert "money is conserved in every snapshot" in printed
    assert len(cells["in_flight"]) == len(world.committed) >= 6
    assert {row["verdict"] for row in cells["verify_proofs"](cells["snapshots"]).collect()} == {"holds"}
    assert (tmp_path / "money-in-flight.png").read_bytes().startswith(b"\x89PNG")
    assert (tmp_path / "invariants" / "conserved.sql").read_text().startswith("-- name: money is conserved")
    cells["snapshots"].unpersist()
