"""Which channels wait for credit, and which cycles of them are deadlocks."""

from typing import Any

import pytest

from strobe.protocol import ChannelSpec, View
from strobe.runtime.coordinator.credit_deadlock import credit_cycles, held_back, waiting_channels
from strobe.runtime.messages.control import ChannelReport, Heartbeat


def channels(*pairs: str) -> list[ChannelSpec]:
    return [ChannelSpec(f"{source}->{target}", source, target) for source, target in pairs]


def named(cycles: list[tuple[ChannelSpec, ...]]) -> list[list[str]]:
    return [[channel.id for channel in cycle] for cycle in cycles]


def test_a_waiting_chain_is_no_cycle() -> None:
    assert credit_cycles(channels("ab", "bc", "cd")) == []


def test_the_shortest_cycle_through_a_process_is_found() -> None:
    assert named(credit_cycles(channels("ab", "bc", "ca", "cb"))) == [["a->b", "b->c", "c->a"]]
    assert named(credit_cycles(channels("ab", "ba", "bc", "ca"))) == [["a->b", "b->a"], ["c->a", "a->b", "b->c"]]


def test_separate_cycles_and_a_self_loop_are_each_found() -> None:
    assert named(credit_cycles(channels("aa", "bc", "cb", "xa"))) == [["a->a"], ["b->c", "c->b"]]


def test_only_long_waiting_channels_of_the_view_are_returned() -> None:
    view = View(1, ("a", "b"), tuple(channels("ab", "ba")))
    reports = {"a->b": ChannelReport(1, waiting_s=4.0), "a->z": ChannelReport(1, waiting_s=99.0)}
    heartbeats = {"a": Heartbeat("a", 1, 0, 0.0, 0, reports, {}, {})}
    assert [(channel.id, waited) for channel, waited in waiting_channels(view, heartbeats)] == [("a->b", 4.0)]
    assert waiting_channels(view, heartbeats, after_s=5.0) == []


def beat(process: str, report: dict[str, Any], received: int = 500) -> Heartbeat:
    """Return a heartbeat of `a` or `b`: a report on its outgoing channel; `received` bytes wait on the incoming one."""
    (other,) = {"a", "b"} - {process}
    outgoing = {f"{process}->{other}": ChannelReport(1, **report)}
    return Heartbeat(process, 1, 0, 0.0, 0, outgoing, {}, {}, waiting_bytes={f"{other}->{process}": received})


STUCK = {"waiting_s": 4.0, "full": True}


@pytest.mark.parametrize(
    ("report", "received"),
    [
        (STUCK | {"full": False}, 500),
        (STUCK | {"connected": False}, 500),
        (STUCK, 0),
    ],
    ids=["there is room to go on", "there is no connection", "nothing has arrived"],
)
def test_a_held_back_sender_has_no_room_and_an_idle_target(report: dict[str, Any], received: int) -> None:
    forth, back = channels("ab", "ba")
    heartbeats = {"a": beat("a", STUCK), "b": beat("b", STUCK)}
    assert [channel for channel in (forth, back) if held_back(channel, heartbeats)] == [forth, back]
    assert not held_back(forth, {"a": beat("a", report), "b": beat("b", STUCK, received)})
    assert not held_back(forth, {"a": beat("a", STUCK)})
