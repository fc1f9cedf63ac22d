"""E14, M2: a readable frame that breaks a rule of its channel ends its connection. The node continues."""

import asyncio
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.runtime.link_ends import EPOCH, run, until
from tests.runtime.links.sockets.test_hostile_peers import Hostile
from tests.runtime.lone_node import LoneNode, lone_node
from tests.runtime.scripted import Scripted, pair

from strobe.process import Channel, System
from strobe.protocol import Frame, SnapshotId, View
from strobe.protocol.coordinator.messages import InstallView, RecordingFailed
from strobe.protocol.process.events import Marker
from strobe.runtime.links import codec
from strobe.runtime.links.codec import messages_frame
from strobe.runtime.messages.control import Failed
from strobe.runtime.node.captures import UNBEGUN_MAX

MakeFrame = Callable[[View, int], bytearray]


def messages(first: int = 0, view: int = 1, index: int = 0, content: Any = "late") -> MakeFrame:
    """Return a function that makes a frame of one message, `first` messages after the one that is due."""
    body = msgspec.msgpack.encode([content])
    return lambda _, due: messages_frame(Frame(due + first, 1, body, index, view))


def marker(view: int, sent_count: int | None = None) -> MakeFrame:
    return lambda _, due: codec.marker_frame(Marker(EPOCH, view, SnapshotId(EPOCH, 1, "a"), sent_count))


def view(number: int, sent: int = 0, joined: str = "", left: str = "") -> MakeFrame:
    def make(known: View, due: int) -> bytearray:
        processes = tuple(sorted({*known.processes, *([joined] if joined else [])} - {left}))
        channels = tuple(spec for spec in known.channels if left not in (spec.source, spec.target))
        return codec.view_frame(View(number, processes, channels), due - 1 + sent)

    return make


def barrier(known: View, due: int) -> bytearray:
    return codec.barrier_frames(Marker(EPOCH, 1, SnapshotId(EPOCH, 1, "a"), due - 1), [])[0]


RULES: dict[str, tuple[MakeFrame, str]] = {
    "a gap": (messages(3), "message 5 arrived, but 2 was expected (3 missing: a gap or a reordering)"),
    "far ahead": (messages((1 << 64) - 3), "message 18446744073709551615 arrived, but 2 was expected"),
    "again": (messages(-1), "message 1 arrived again or out of order: 2 was expected (duplicate)"),
    "of a later view": (messages(view=2), "a frame of view 2 arrived before it"),
    "of a cut": (messages(index=(1 << 64) - 1), "the cut index of a frame leaps to 18446744073709551615"),
    "a type": (messages(content="text"), "a message from a is not one of the types in `messages`: Expected `int`, got"),
    "marker of a later view": (marker(2), "a marker of view 2 arrived before that view"),
    "view far ahead": (view(9, joined="c"), "view 9 arrived, not one change after view 1"),
    "view of two": (view(2, joined="c", left="a"), "view 2 arrived, not one change after view 1"),
    "the same view again, another": (
        view(1, joined="c"),
        "view 1 arrived, and differs from that view here",
    ),
    "view of too many": (view(2, sent=4, joined="c"), "5 messages preceded view 2, but 1 arrived"),
    "barrier": (barrier, "an overtaking barrier arrived, and chandy-lamport has none"),
}


def of_numbers(protocol: str = "chandy-lamport", kind: str = "fifo") -> System:
    system = pair(protocol, kind)
    system.decoder = msgspec.msgpack.Decoder(list[int])
    return system


async def send_wrong(node: LoneNode, make: MakeFrame) -> None:
    """Send the frame of `make` as the next of the channel, and wait until the node has closed the connection."""
    hostile = await Hostile.connect(node)
    frame = make(node.timeline.protocol.view, node.timeline.channels.incoming_links["a->b", 1].next_ordinal)
    codec.number(frame, hostile.welcome.last_sequence + 1)
    await hostile.send(bytes(frame))


@pytest.mark.parametrize("waits", [False, True], ids=["at once", "behind others"])
@pytest.mark.parametrize("case", RULES)
def test_E14_a_frame_that_breaks_a_rule_ends_its_connection_only(
    tmp_path: Path, case: str, waits: bool, caplog: pytest.LogCaptureFixture
) -> None:
    make, problem = RULES[case]

    async def scenario() -> None:
        async with lone_node(tmp_path, of_numbers()) as node:
            node.timeline.outbox.full = waits
            node.source.send(1)
            await until(lambda: node.timeline.inbox or node.process.messages)
            await send_wrong(node, make)
            node.timeline.outbox.full = False
            node.timeline.scheduler.pump_soon()
            node.source.send(2)
            await node.received(1, 2)
            assert node.host.problem is None
            assert node.host.rejected == {"broken rule": 1}

    with caplog.at_level(logging.WARNING, "strobe.links"):
        run(scenario())
    (line,) = [record.getMessage() for record in caplog.records if "broken rule" in record.getMessage()]
    assert line.startswith("rejected from process a at 127.0.0.1:")
    assert f"broken rule: channel a->b, at b: {problem}" in line


@pytest.mark.parametrize("case", ["a gap", "again", "a type", "view of too many"])
def test_M2_a_source_that_repeats_a_wrong_frame_ends_the_node(tmp_path: Path, case: str) -> None:
    """The ends of the channel disagree about its history. Only a rollback can fix that, so it must not be hidden."""
    make, problem = RULES[case]

    async def scenario() -> None:
        async with lone_node(tmp_path, of_numbers()) as node:
            node.source.send(1)
            await node.received(1)
            node.source.outgoing_link.write(make(node.timeline.protocol.view, 2))
            failed = await node.link.handle(Failed)
            assert problem in failed.reason
            assert node.host.rejected["broken rule"] >= 4

    run(scenario())


@pytest.mark.parametrize("kind", ["fifo", "unordered"])
def test_E14_an_invalid_cut_index_is_refused_under_lai_yang(tmp_path: Path, kind: str) -> None:
    async def scenario() -> None:
        async with lone_node(tmp_path, of_numbers("lai-yang", kind)) as node:
            node.source.send(1)
            await node.received(1)
            for make in (messages(index=1 << 62), messages(3), messages(-1), messages(view=2)):
                await send_wrong(node, make)
            node.source.send(2)
            await node.received(1, 2)
            assert node.host.rejected == {"broken rule": 4}

    run(scenario())


def test_E14_a_frame_after_the_end_of_a_channel_is_refused(tmp_path: Path) -> None:
    async def scenario() -> None:
        system = System({name: Scripted() for name in "abc"}, [Channel("a", "b"), Channel("c", "b"), Channel("b", "c")])
        async with lone_node(tmp_path, system) as node:
            node.source.send(1)
            await node.received(1)
            known = node.timeline.protocol.view
            node.source.outgoing_link.write(view(2, left="a")(known, 2))
            await until(lambda: node.timeline.protocol.view.number == 2)
            for make in (messages(view=2), marker(2), view(3, joined="a")):
                hostile = await Hostile.connect(node)
                frame = make(node.timeline.protocol.view, 2)
                codec.number(frame, hostile.welcome.last_sequence + 1)
                await hostile.send(bytes(frame))
            assert node.host.rejected == {"broken rule": 3}
            assert node.host.problem is None

    run(scenario())


def test_E14_a_different_view_of_the_same_number_ends_the_node(tmp_path: Path) -> None:
    """A wrong but possible view from a peer is detected when the coordinator sends the right one."""

    async def scenario() -> None:
        async with lone_node(tmp_path) as node:
            known = node.timeline.protocol.view
            node.source.outgoing_link.write(view(2, joined="c")(known, 1))
            await until(lambda: node.timeline.protocol.view.number == 2)
            node.link.send(InstallView("b", View(2, (*known.processes, "d"), known.channels)))
            failed = await node.link.handle(Failed)
            assert "view 2 differs between the coordinator and a peer" in failed.reason

    run(scenario())


def test_E3_markers_of_unknown_snapshots_take_bounded_memory(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with lone_node(tmp_path) as node:
            for counter in range(1, 1001):
                node.source.mark(counter)
            await until(lambda: len(node.link.said(RecordingFailed)) == 1000 - UNBEGUN_MAX)
            await until(lambda: len(node.timeline.protocol.open) <= UNBEGUN_MAX)
            assert len(node.timeline.captures.open) == UNBEGUN_MAX
            assert (
                "later ones were recorded before the coordinator began it" in node.link.said(RecordingFailed)[0].reason
            )
            node.source.send("goes on")
            await node.received("goes on")

    run(scenario())


def test_a_link_without_progress_backs_off(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with lone_node(tmp_path, of_numbers()) as node:
            loop, outgoing_link, at_s = asyncio.get_running_loop(), node.source.outgoing_link, []
            pause = outgoing_link._pause

            async def note_pause(pause_s: float) -> None:
                at_s.append(pause_s)
                await pause(0)

            outgoing_link._pause = note_pause  # type: ignore[method-assign]
            outgoing_link.write(messages(3)(node.timeline.protocol.view, 1))
            await node.link.handle(Failed)
            assert loop.is_running()
            assert at_s[0] <= 0.1
            assert at_s[3] >= 0.2, "half of what it comes to, at least"

    run(scenario())
