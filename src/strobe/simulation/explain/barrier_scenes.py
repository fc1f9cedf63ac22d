"""The scripts of `strobe explain --system wordcount`: barriers on a dataflow of four processes (V3-V5)."""

from typing import Any

from strobe.protocol import COORDINATOR, Aligned, AlignedThenUnaligned, ChannelSpec, SnapshotId, Unaligned, View
from strobe.simulation.explain.barrier_stage import BarrierStage
from strobe.simulation.mutants.barrier_mutants import RecordedBeforeAlignment

FIRST = SnapshotId(1, 1, COORDINATOR)
WORDS = 100
"""The number of words to read: each is unread, counted, or in flight."""


def dataflow(protocol_class: Any) -> BarrierStage:
    """Return a reader that sends words to two counters, and a sum of both."""
    edges = (("read", "one"), ("read", "two"), ("one", "sum"), ("two", "sum"))
    channels = tuple(ChannelSpec(f"{source}->{target}", source, target) for source, target in edges)
    view = View(1, ("read", "one", "two", "sum"), channels)
    return BarrierStage(view, protocol_class, {"read": WORDS, "one": 0, "two": 0, "sum": 0}, unit="w")


def aligned() -> BarrierStage:
    """One input of the last process is held back until the barrier arrives on the other."""
    stage = dataflow(Aligned)
    _begin(stage)
    stage.take("read->one")
    stage.take("one->sum")
    stage.take("one->sum")
    stage.send("one", "one->sum", 1)  # behind the barrier: it waits
    stage.take("read->two")
    stage.send("two", "two->sum", 3)
    stage.take("read->two")
    stage.take("two->sum")
    stage.finish()
    return stage


def recorded_at_once() -> BarrierStage:
    """The same with a process that records at the first barrier, and still records its channels as empty."""
    stage = dataflow(RecordedBeforeAlignment)
    _begin(stage)
    stage.take("read->one")
    stage.take("one->sum")
    stage.take("one->sum")
    stage.take("read->two")
    stage.send("two", "two->sum", 3)
    stage.take("read->two")
    stage.finish()
    return stage


def unaligned() -> BarrierStage:
    """The barrier overtakes the messages queued at a slow process, and at its sender."""
    stage = dataflow(Unaligned)
    _queue(stage)
    stage.request("read", FIRST)
    stage.arrive("read->one")
    stage.arrive("read->two")
    stage.arrive("one->sum")
    stage.arrive("two->sum")
    stage.finish()
    return stage


def timed() -> BarrierStage:
    """The barrier waits for its turn until the alignment timer fires."""
    stage = dataflow(AlignedThenUnaligned)
    _queue(stage)
    stage.request("read", FIRST)
    stage.forward("read->one")
    stage.take("read->one")
    stage.forward("read->two")
    stage.take("read->two")
    stage.forward("two->sum")
    stage.take("two->sum")
    stage.forward("one->sum")
    stage.forward("one->sum")
    stage.time_out("sum", FIRST)
    stage.finish()
    return stage


def _begin(stage: BarrierStage) -> None:
    stage.send("read", "read->one", 5)
    stage.send("read", "read->two", 4)
    stage.take("read->one")
    stage.send("one", "one->sum", 2)
    stage.request("read", FIRST)


def _queue(stage: BarrierStage) -> None:
    """Queue words at the last process, and one more at its sender, without credit."""
    stage.send("read", "read->one", 5)
    stage.forward("read->one")
    stage.take("read->one")
    stage.send("one", "one->sum", 2)
    stage.forward("one->sum")
    stage.send("one", "one->sum", 3)
