"""The order in which a process handles frames, markers, timers and orders, also under back-pressure."""

import asyncio
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.runtime.fake_coordinator import coordinating
from tests.runtime.link_ends import run, until
from tests.runtime.lone_node import LoneNode, lone_node
from tests.runtime.scripted import acting, pair, scripted

from strobe.protocol.coordinator.messages import Drained, InstallView, RequestRecording, SnapshotWanted
from strobe.protocol.values.view import View
from strobe.runtime.messages.control import AddressBook, Heartbeat, ProcessRecorded
from strobe.runtime.node import application as application_module
from strobe.runtime.node import scheduling

SLOW = {"backlog_bytes_max": 200, "frame_messages_max": 1}


async def fill(node: LoneNode) -> None:
    """Fill the backlog of b->a: a is not connected."""
    for _ in range(3):
        node.context.send("b->a", bytes(100))
    node.timeline.outbox.flush()
    assert node.timeline.outbox.full


async def end_channel_to_a(node: LoneNode) -> None:
    """Install a view without the channel from b to a."""
    channels = tuple(spec for spec in node.coordinator.view.channels if spec.id == "a->b")
    node.link.send(InstallView("b", View(2, ("a", "b"), channels)))
    while (await node.link.handle(Drained)).view != 2:
        pass


def test_back_pressure_stops_delivery_and_markers_keep_their_order(tmp_path: Path) -> None:
    """Duty 2: queued frames still count as in flight, in order. An order of the coordinator runs ahead of them."""

    async def scenario() -> None:
        async with lone_node(tmp_path, **SLOW) as node:
            await fill(node)
            node.source.send(1)
            node.source.send(2)
            node.source.mark(1)
            node.source.send(3)
            await until(lambda: len(node.timeline.inbox) == 4)
            assert node.process.messages == []
            begun = await node.recorded(2)
            assert [(await node.link.handle(ProcessRecorded)).snapshot] == [
                begun.snapshot
            ]  # the queued marker has not been handled
            assert node.timeline.protocol.open[begun.snapshot].received["a->b"].count == 0
            # The peer takes messages again: the queue is handled in order of arrival.
            node.timeline.channels.has_room("b->a")
            await node.received(1, 2, 3)
            first = [snapshot for snapshot in node.timeline.captures.open if snapshot.counter == 1]
            captured = node.timeline.captures.open[first[0]]
            assert (await captured.fragment).received["a->b"].count == 2
            # The marker of the other snapshot has not arrived, so all three messages are in flight in it.
            assert len(node.timeline.protocol.open[begun.snapshot].frames["a->b"]) == 3

    run(scenario())


def test_credit_is_granted_when_messages_are_received(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with lone_node(tmp_path, **SLOW) as node:
            await fill(node)
            size = node.source.send("waits")
            await until(lambda: node.timeline.inbox)
            incoming_link = node.timeline.channels.incoming_links["a->b", 1]
            assert incoming_link.waiting_bytes == size
            assert incoming_link.consumed_bytes == 0
            node.timeline.channels.has_room("b->a")
            await node.received("waits")
            assert incoming_link.waiting_bytes == 0
            await until(lambda: node.source.outgoing_link.outstanding_bytes == 0)

    run(scenario())


def test_a_timer_delayed_by_back_pressure_is_pending_in_a_cut(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with lone_node(tmp_path, **SLOW) as node:
            await fill(node)
            node.context.set_timer("first", 0)
            node.context.set_timer("second", 0)
            await until(lambda: len(node.timeline.inbox) == 2)
            node.context.cancel_timer("first")
            begun = await node.recorded()
            capture = node.timeline.captures.open[begun.snapshot]
            assert capture.captured.timers == (("second", 0.0),)
            node.timeline.channels.has_room("b->a")
            await until(lambda: node.process.memory.fired == ["second"])
            assert not node.timeline.inbox

    run(scenario())


def test_a_timer_set_again_while_queued_fires_once(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with lone_node(tmp_path, **SLOW) as node:
            await fill(node)
            node.context.set_timer("it", 0)
            await until(lambda: node.timeline.inbox)
            node.context.set_timer("it", 0)
            await until(lambda: len(node.timeline.inbox) == 2)
            node.timeline.channels.has_room("b->a")
            await until(lambda: not node.timeline.inbox)
            assert node.process.memory.fired == ["it"]

    run(scenario())


def test_C7_a_long_frame_yields_to_the_loop_and_no_cut_divides_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The slice is over after each message, so heartbeats and other callbacks need not wait for the whole frame."""
    monkeypatch.setattr(application_module, "SLICE_S", -1)

    async def scenario() -> None:
        async with lone_node(tmp_path) as node:
            turns: list[int] = []

            def receive(ctx: Any, channel: str, number: int) -> None:
                if number == 2:
                    order = RequestRecording("b", begun.snapshot, 1)
                    asyncio.get_running_loop().call_soon(node.timeline.apply, order)
                    node.context.set_timer("due", 0)
                seen.append(len(turns))
                asyncio.get_running_loop().call_soon(turns.append, number)

            begun = node.begin_snapshot(2)
            node.link.send(begun)
            seen: list[int] = []
            node.process.on_receive = receive
            node.source.send(1, 2, 3, 4, 5)
            node.source.send(6, 7)
            await node.received(1, 2, 3, 4, 5, 6, 7)
            assert seen[:5] == [0, 1, 2, 3, 4]
            recording = node.timeline.protocol.open[begun.snapshot]
            assert recording.received["a->b"].count == 5
            assert [item.frame.count for item in recording.frames["a->b"]] == [2]
            state = msgspec.msgpack.decode(node.timeline.captures.open[begun.snapshot].data)
            assert [message for _, message in state["received"]] == [1, 2, 3, 4, 5]
            await until(lambda: node.process.memory.fired == ["due"])

    run(scenario())


def test_R1_the_rest_of_a_frame_is_dropped_when_its_epoch_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(application_module, "SLICE_S", -1)

    async def scenario() -> None:
        async with lone_node(tmp_path) as node:
            process = node.process

            def receive(ctx: Any, channel: str, number: int) -> None:
                if number == 2:
                    asyncio.get_running_loop().call_soon(node.timeline.close)

            process.on_receive = receive
            node.source.send(1, 2, 3, 4)
            await until(lambda: len(process.messages) == 2)
            await asyncio.sleep(0.01)
            assert process.messages == [1, 2]
            assert node.timeline.application.quiet

    run(scenario())


@pytest.mark.parametrize("storing", [False, True])
def test_C7_frames_read_in_a_long_iteration_wait_for_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, storing: bool
) -> None:
    """While a fragment is being stored the limit is lower, because storing takes several iterations."""
    monkeypatch.setattr(scheduling, "STORING_TURN_S_MAX", -1 if storing else 60)
    monkeypatch.setattr(scheduling, "TURN_S_MAX", 60 if storing else -1)

    async def scenario() -> None:
        async with lone_node(tmp_path) as node:
            if storing:
                await node.recorded(2)
            waited: list[int] = []
            reads_on: list[bool] = []
            taken = node.timeline.taken
            monkeypatch.setattr(node.timeline, "taken", lambda: reads_on.append(taken()) or reads_on[-1])
            node.process.on_receive = lambda *_: waited.append(len(node.timeline.inbox))
            for number in range(20):
                node.source.send(number, now=False)
            node.source.outgoing_link.flush()
            await node.received(*range(20))
            assert max(waited) > 10
            assert not all(reads_on)  # unread frames stay in the kernel for that iteration
            assert not node.timeline.inbox
            await until(lambda: node.source.outgoing_link.outstanding_bytes == 0)

    run(scenario())


def test_the_loop_keeps_running_while_a_long_queue_is_handled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scheduling, "ITEMS_S_MAX", 60)  # on a slow machine the time limit would apply first

    async def scenario() -> None:
        async with lone_node(tmp_path, **SLOW) as node:
            await fill(node)
            count = 3 * scheduling.ITEMS_MAX
            for number in range(count):
                node.source.send(number)
            await until(lambda: len(node.timeline.inbox) == count)
            turns: list[int] = []
            seen: list[int] = []

            def receive(ctx: Any, channel: str, number: int) -> None:
                seen.append(len(turns))
                asyncio.get_running_loop().call_soon(turns.append, number)

            node.process.on_receive = receive
            node.timeline.channels.has_room("b->a")
            node.source.send("late")
            await until(lambda: len(node.process.messages) == count + 1)
            assert node.process.messages == [*range(count), "late"]
            assert seen[scheduling.ITEMS_MAX - 1] == 0
            assert seen[scheduling.ITEMS_MAX] == scheduling.ITEMS_MAX

    run(scenario())


def test_a_failed_process_receives_nothing_more(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with lone_node(tmp_path, **SLOW) as node:
            await fill(node)
            before = len(node.process.messages)
            node.source.send("waits")
            await until(lambda: node.timeline.inbox)
            timeline = node.timeline
            timeline.channels.has_room("b->a")  # it would be handled in the next event-loop iteration
            node.host.fail(ValueError("enough"))
            timeline.scheduler.pump()
            assert len(node.process.messages) == before

    run(scenario())


def test_the_end_of_the_full_channel_resumes_its_process(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with lone_node(tmp_path, **SLOW) as node:
            await fill(node)
            node.source.send("waits")
            await until(lambda: node.timeline.inbox)
            await end_channel_to_a(node)
            await node.received("waits")
            assert node.timeline.outbox.outgoing_links == {}

    run(scenario())


def test_an_ended_channel_is_closed_at_the_latest_with_the_epoch(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with lone_node(tmp_path, **SLOW) as node:
            outgoing_link = node.timeline.outbox.outgoing_links["b->a"]
            await fill(node)
            await end_channel_to_a(node)
            assert not outgoing_link.closed  # the messages sent on it must still arrive
            node.source.outgoing_link.close()
            await node.coordinator.begin(["b"], epoch=4)
            assert outgoing_link.closed

    run(scenario())


def test_E2_an_ended_channel_is_closed_only_when_its_target_has_left(
    tmp_path: Path,
) -> None:
    async def scenario() -> None:
        async with lone_node(tmp_path, **SLOW) as node:
            outgoing_link = node.timeline.outbox.outgoing_links["b->a"]
            await fill(node)
            await end_channel_to_a(node)
            node.link.send(AddressBook({}, ("a", "b")))  # of a restarted coordinator that knows no nodes yet
            node.link.send(AddressBook({"a": ("127.0.0.1", 1)}, ("a", "b")))
            await until(lambda: outgoing_link._address == ("127.0.0.1", 1))
            assert outgoing_link.unacknowledged > 3
            node.link.send(AddressBook({}, ("b",)))
            await until(lambda: outgoing_link.closed)
            assert outgoing_link.unacknowledged == 0

    run(scenario())


def test_C7_E7_a_restarted_coordinator_cuts_no_link(tmp_path: Path) -> None:
    async def scenario() -> None:
        system = pair()
        async with coordinating(tmp_path, system) as coordinator:
            a, _ = await coordinator.started("a", "b")
            assert a.timeline is not None
            outgoing_link = a.timeline.outbox.outgoing_links["a->b"]
            await until(lambda: outgoing_link.connected)
            a_address, b_address = (coordinator.links[name].register.address for name in ("a", "b"))
            coordinator.links["a"].send(AddressBook({"a": a_address}, ("a", "b")))
            await until(lambda: "b" not in a.addresses)
            acting(a).send("a->b", 1)
            await until(lambda: scripted(system, "b").messages == [1])
            coordinator.links["a"].send(AddressBook({"a": a_address, "b": b_address}, ("a", "b")))
            await until(lambda: "b" in a.addresses)
            assert outgoing_link.connected
            assert outgoing_link.reconnects == 0
            coordinator.links["a"].send(AddressBook({"a": a_address, "b": ("127.0.0.1", 1)}, ("a", "b")))  # b has moved
            await until(lambda: not outgoing_link.connected)

    run(scenario())


def test_sends_of_an_ended_epoch_are_dropped(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with lone_node(tmp_path) as node:
            old = node.timeline
            send = node.context.send
            send("b->a", 1)
            node.source.outgoing_link.close()
            await node.coordinator.begin(["b"], epoch=4)
            send("b->a", 2)
            old.outbox.flush()
            assert old.protocol.outgoing["b->a"].count <= 1
            assert node.timeline.protocol.outgoing["b->a"].count == 0

    run(scenario())


def test_C2_messages_sent_before_the_cut_are_sealed_before_it(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with lone_node(tmp_path) as node:

            def answer(ctx: Any, channel: str, message: Any) -> None:
                ctx.send("b->a", message)
                if message == 2:
                    ctx.snapshot()

            node.process.on_receive = answer
            node.source.send(1, 2, 3)
            await node.received(1, 2, 3)
            (recording,) = node.timeline.protocol.open.values()
            assert recording.sent["b->a"].count == 2
            assert recording.received["a->b"].count == 2
            assert [item.consumed for item in recording.frames["a->b"]] == [2]
            assert node.timeline.protocol.outgoing["b->a"].count in (2, 3)

    run(scenario())


def test_V1_lai_yang_requests_a_snapshot_from_the_sequencer(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with lone_node(tmp_path, pair("lai-yang", "unordered")) as node:
            names: list[str] = []
            node.process.on_receive = lambda ctx, channel, message: names.append(ctx.snapshot())
            node.source.outgoing.fifo = False
            node.source.send(1)
            assert (await node.link.handle(SnapshotWanted)).initiators == ("b",)
            assert names == ["request-b-2-1"]

    run(scenario())


def test_a_heartbeat_reports_queues_and_recordings(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with lone_node(tmp_path, heartbeat_s=0.002, **SLOW) as node:
            await fill(node)
            await node.recorded()
            beat: Heartbeat = await node.link.handle(Heartbeat)
            while not beat.open_snapshots:
                beat = await node.link.handle(Heartbeat)
            report = beat.outgoing["b->a"]
            assert (report.sent, report.connected) == (3, False)
            assert report.backlog_bytes > 300
            assert (beat.process, beat.epoch, beat.position) == ("b", 3, 1)
            assert beat.memory_bytes > 1 << 20

    run(scenario())
