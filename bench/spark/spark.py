"""Verification on Spark: a store of simulated snapshots, against a loop over the same store in one Python process."""

import tempfile
from pathlib import Path

from examples.bank import Branch, Transfer

from bench.figures import Figure, interleaved, shown, wall_s
from strobe import Channel, System
from strobe.causality import verify
from strobe.simulation import World
from strobe.spark import local_session, stop_local_session, verdicts
from strobe.storage import Store

COMMAND = "python -m bench spark"
_SNAPSHOTS, _BRANCHES = 300, 8


def _fill(path: Path) -> int:
    """Store the snapshots of a bank of eight, and return their number."""
    names = [f"branch{number}" for number in range(_BRANCHES)]
    channels = [Channel(source, target) for source in names for target in names if source != target]
    system = System({name: Branch(200) for name in names}, channels, [Transfer])
    World(system, 1, store=Store.create(str(path))).run(_SNAPSHOTS)
    return len(Store.open(str(path)).list())


def measure() -> list[Figure]:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "store"
        count = _fill(path)

        def loop() -> None:
            store = Store.open(str(path))
            assert all(verify(store.load(name)).holds for _, name, _ in store.list())

        def on_spark() -> None:
            assert all(row.holds for row in verdicts(str(path)))

        start_s = wall_s(local_session)
        first_s = wall_s(on_spark)
        spark_s, loop_s = interleaved(5, lambda: wall_s(on_spark), lambda: wall_s(loop))
        stop_local_session()
    return [
        shown("Spark, session start", start_s, "s", COMMAND),
        shown(f"Spark, first verification of {count} snapshots of {_BRANCHES} processes", first_s, "s", COMMAND),
        shown("Spark, later ones", count / spark_s, "snapshots/s", COMMAND),
        shown("Spark against a Python loop over the same store", loop_s / spark_s, "x", COMMAND),
    ]
