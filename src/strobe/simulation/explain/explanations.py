"""The scripts of `strobe explain`: small systems, run with the real protocol classes (R6)."""

from collections.abc import Callable

import msgspec

from strobe.errors import UsageError
from strobe.protocol import COORDINATOR, ChandyLamport, LaiYang, SnapshotId
from strobe.simulation.explain import barrier_scenes
from strobe.simulation.explain.stage import Moment, Stage, view_of_edges
from strobe.simulation.mutants.protocol_mutants import (
    OneAfterAnother,
    ReorderedChannel,
    SameClockTime,
    StatesWithoutChannels,
)

FIRST = SnapshotId(1, 1, COORDINATOR)
SECOND = SnapshotId(1, 2, COORDINATOR)


class Outcome(msgspec.Struct, frozen=True):
    """What a snapshot recorded, and whether its proof holds."""

    snapshot: str
    balances: dict[str, int]
    in_flight: dict[str, list[int]]
    total: int
    expected_total: int
    holds: bool
    findings: tuple[str, ...]


class Scene(msgspec.Struct, frozen=True):
    """A script that has been run. `right`: whether its snapshots ought to be correct."""

    title: str
    story: str
    processes: tuple[str, ...]
    moments: tuple[Moment, ...]
    outcomes: tuple[Outcome, ...]
    right: bool


def _scene(
    title: str, story: str, stage: Stage, expected_total: int, *snapshots: SnapshotId, right: bool = True
) -> Scene:
    outcomes = []
    for snapshot in snapshots:
        balances, in_flight = stage.recorded_balances(snapshot), stage.recorded_amounts(snapshot)
        total = sum(balances.values()) + sum(sum(amounts) for amounts in in_flight.values())
        verdict = stage.verdict(snapshot)
        findings = tuple(str(finding) for finding in verdict.findings)
        outcomes.append(
            Outcome(f"S{snapshot.counter}", balances, in_flight, total, expected_total, verdict.holds, findings)
        )
    return Scene(title, story, stage.view.processes, tuple(stage.moments), tuple(outcomes), right)


def _bank3() -> list[Scene]:
    stage = Stage(view_of_edges("abc", "ab ba bc cb ca ac"), ChandyLamport, {"a": 100, "b": 100, "c": 100})
    stage.send("b", "b->a", 10)
    stage.request("a", FIRST)
    stage.send("c", "c->b", 5)
    stage.take("a->b")
    stage.take("b->a")
    stage.take("c->b")
    stage.take("a->c")
    stage.send("c", "c->a", 7)
    stage.finish()
    story = (
        "Three branches hold 300 in all. While $10 and $5 are on the wire, a takes a snapshot. No process stops. The "
        "states recorded do not add up to 300; with what the channels recorded, they do."
    )
    return [_scene("Chandy-Lamport on a bank of three", story, stage, 300, FIRST)]


def _token4() -> list[Scene]:
    stage = Stage(view_of_edges("abcd", "ab bc cd da"), ChandyLamport, {"a": 1, "b": 0, "c": 0, "d": 0}, unit="token ")
    stage.send("a", "a->b", 1)
    stage.request("c", FIRST)
    stage.take("c->d")
    stage.take("a->b")
    stage.send("b", "b->c", 1)
    stage.take("d->a")
    stage.take("b->c")
    stage.finish()
    story = (
        "One token goes round a ring of four. The snapshot starts at c, which does not have it. It is found exactly "
        "once: in a state or on a channel, never in both, never in neither."
    )
    return [_scene("A token on a ring of four", story, stage, 1, FIRST)]


def _overlap() -> list[Scene]:
    stage = Stage(view_of_edges("ab", "ab ba"), ChandyLamport, {"a": 50, "b": 50})
    stage.send("a", "a->b", 5)
    stage.request("a", FIRST)
    stage.send("b", "b->a", 8)
    stage.request("b", SECOND)
    stage.take("b->a")
    stage.take("a->b")
    stage.take("b->a")
    stage.finish()
    story = "Two snapshots at once, from two initiators. They are told apart by id, and each is right on its own (C6)."
    return [_scene("Two snapshots that overlap", story, stage, 100, FIRST, SECOND)]


def _reordering() -> list[Scene]:
    broken = Stage(view_of_edges("ab", "ab ba"), ReorderedChannel, {"a": 50, "b": 50})
    broken.send("a", "a->b", 5)
    broken.request("a", FIRST)
    broken.send("a", "a->b", 9)
    broken.take("a->b", place=2)
    broken.finish()
    right = Stage(view_of_edges("ab", "ab ba", "unordered"), LaiYang, {"a": 50, "b": 50})
    right.send("a", "a->b", 5)
    right.request("a", FIRST)
    right.send("a", "a->b", 9)
    right.take("a->b", place=1)
    right.relay()
    right.finish()
    return [
        _scene(
            "Chandy-Lamport on a channel that reorders: wrong",
            "a records, sends the marker, then $9. The $9 overtakes the marker, so b has it in its state, while a's "
            "state has it too. (The ordinals would have shown it; they are not checked here.)",
            broken,
            100,
            FIRST,
            right=False,
        ),
        _scene(
            "Lai-Yang on the same channel: right",
            "The $9 carries a's cut index, which is above b's: b records first, then delivers. No order is needed.",
            right,
            100,
            FIRST,
        ),
    ]


def _naive() -> list[Scene]:
    return [_naive_states(), _naive_turns(), _naive_clock()]


def _naive_states() -> Scene:
    stage = Stage(view_of_edges("ab", "ab ba"), StatesWithoutChannels, {"a": 50, "b": 50})
    stage.send("a", "a->b", 20)
    stage.request("a", FIRST)
    stage.request("b", FIRST)
    stage.finish()
    story = "Every state is recorded at a consistent cut, but not what is on the wire: $20 are missing."
    return _scene("Naive 1: states without channels", story, stage, 100, FIRST, right=False)


def _naive_turns() -> Scene:
    stage = Stage(view_of_edges("ab", "ab ba"), OneAfterAnother, {"a": 50, "b": 50})
    stage.request("a", FIRST)
    stage.send("a", "a->b", 20)
    stage.take("a->b")
    stage.request("b", FIRST)
    stage.finish()
    story = "a is recorded, then b. Between the two, $20 went from a to b, and are counted at both."
    return _scene("Naive 2: freezing one after another", story, stage, 100, FIRST, right=False)


def _naive_clock() -> Scene:
    stage = Stage(view_of_edges("ab", "ab ba"), SameClockTime, {"a": 50, "b": 50})
    stage.send("b", "b->a", 5)
    stage.request("a", FIRST)
    stage.send("a", "a->b", 20)
    stage.take("a->b")
    stage.request("b", FIRST)
    stage.finish()
    story = (
        "Every process records at noon, and keeps what was sent before noon and arrived after it. But b's clock is "
        "behind: it receives at 11:59 what a sent at 12:01."
    )
    return _scene("Naive 3: all processes at the same clock time", story, stage, 100, FIRST, right=False)


def _wordcount() -> list[Scene]:
    return [
        _scene(
            "Aligned barriers on a word count",
            "A reader hands words to two that count, and both to one that sums up. The barrier comes to the last one "
            "through `one` first: that input is held back until the barrier has come through `two`. Then it records, "
            "and no word is on the way.",
            barrier_scenes.aligned(),
            barrier_scenes.WORDS,
            FIRST,
        ),
        _scene(
            "Recording before alignment: wrong",
            "Here the last one records at the first barrier, and takes its channels as empty: the words that come "
            "through `two` before the barrier are in no state and on no channel.",
            barrier_scenes.recorded_at_once(),
            barrier_scenes.WORDS,
            FIRST,
            right=False,
        ),
        _scene(
            "Unaligned barriers on the same word count",
            "The last process is slow: w2 waits there, w3 at `one`, for lack of credit. The barrier overtakes both, "
            "and carries copies of them: they are the state of its channel. No process had to wait.",
            barrier_scenes.unaligned(),
            barrier_scenes.WORDS,
            FIRST,
        ),
        _scene(
            "Aligned, until it takes too long",
            "The same queue, and barriers that wait for their turn: one input is held back, the other still has words "
            "before its barrier. When the time is over, these words are channel state, and both inputs go on.",
            barrier_scenes.timed(),
            barrier_scenes.WORDS,
            FIRST,
        ),
    ]


SYSTEMS: dict[str, Callable[[], list[Scene]]] = {
    "bank3": _bank3,
    "token4": _token4,
    "overlap": _overlap,
    "reordering": _reordering,
    "naive": _naive,
    "wordcount": _wordcount,
}


def explain(system: str) -> list[Scene]:
    """Run the scripts of `system`."""
    if system not in SYSTEMS:
        raise UsageError(f"there is nothing to explain called {system!r}; choose: {', '.join(SYSTEMS)}")
    return SYSTEMS[system]()
