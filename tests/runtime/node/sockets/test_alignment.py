"""Barriers between real hosts: which frames are held back or overtaken, at both ends of a link (V3-V5)."""

import asyncio
import threading
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import msgspec
import pytest
from tests.runtime.fake_coordinator import FakeCoordinator, coordinating
from tests.runtime.link_ends import CuttingProxy, Source, Target, run, until
from tests.runtime.scripted import Scripted, acting, scripted

from strobe.causality.proof import verify
from strobe.process import Channel, System
from strobe.protocol import InFlight
from strobe.protocol.coordinator.messages import ReportOutcome, RequestRecording
from strobe.runtime.links.listener import Listener
from strobe.runtime.links.outgoing_link import AHEAD_MAX
from strobe.runtime.messages.control import SnapshotBegun
from strobe.runtime.node.timeline import Timeline
from strobe.runtime.settings import NodeSettings

LOCAL = "127.0.0.1"
SMALL = {"window_bytes": 400, "backlog_bytes_max": 1 << 20, "frame_messages_max": 1}


def join(protocol: str) -> System:
    """Two sources, a and b, whose channels join at c."""
    processes = {name: Scripted() for name in "abc"}
    return System(processes, [Channel("a", "c"), Channel("b", "c")], protocol=protocol)


class Joined:
    """The hosts of a, b and c."""

    def __init__(self, coordinator: FakeCoordinator) -> None:
        self.coordinator = coordinator

    def timeline(self, name: str) -> Timeline:
        timeline = self.coordinator.hosts[name].timeline
        assert timeline is not None
        return timeline

    def send(self, name: str, *messages: Any) -> None:
        for message in messages:
            acting(self.coordinator.hosts[name]).send(f"{name}->c", message)
        self.timeline(name).outbox.flush()

    @property
    def received(self) -> list[Any]:
        return scripted(self.coordinator.system, "c").messages

    def begin(self) -> SnapshotBegun:
        begun = self.coordinator.log_begin("a", "b")
        for name in "abc":
            self.coordinator.links[name].send(begun)
        return begun

    def ask(self, name: str, begun: SnapshotBegun) -> None:
        self.coordinator.links[name].send(RequestRecording(name, begun.snapshot, 1))

    def block(self) -> None:
        """Hold c back, as if a peer that it sends to were slow."""
        self.timeline("c").outbox.full = True

    def go_on(self) -> None:
        self.timeline("c").outbox.full = False
        self.timeline("c").scheduler.pump_soon()

    def time_out(self, begun: SnapshotBegun) -> None:
        """Let the alignment at c time out."""
        timeline = self.timeline("c")
        timeline.scheduler.run_between(partial(timeline.barriers._time_out, begun.snapshot))

    async def snapshot(self, begun: SnapshotBegun) -> Any:
        name = await self.coordinator.commit(begun)
        loaded = self.coordinator.store.load(name)
        assert verify(loaded).holds
        return loaded


def messages(items: tuple[InFlight, ...]) -> list[Any]:
    return [message for item in items for message in msgspec.msgpack.decode(item.frame.body)[item.consumed :]]


def run_joined(scenario: Any, directory: Path, protocol: str, **settings: Any) -> None:
    async def with_hosts() -> None:
        async with coordinating(directory, join(protocol), **settings) as coordinator:
            await coordinator.started("a", "b", "c")
            for name in "ab":
                outgoing_link = coordinator.hosts[name].timeline.outbox.outgoing_links[f"{name}->c"]  # type: ignore[union-attr]
                await until(lambda outgoing_link=outgoing_link: outgoing_link.connected)
            await scenario(Joined(coordinator))

    run(with_hosts())


def test_V3_an_input_with_a_barrier_is_held_within_its_window(tmp_path: Path) -> None:
    async def scenario(hosts: Joined) -> None:
        hosts.send("a", "before")
        await until(lambda: hosts.received == ["before"])
        begun = hosts.begin()
        hosts.ask("a", begun)
        await until(lambda: "a->c" in hosts.timeline("c").inbox.held)
        hosts.send("a", *(f"behind {number:03}" for number in range(100)))
        hosts.send("b", "passes")
        await until(lambda: hosts.received == ["before", "passes"])
        incoming_link = hosts.timeline("c").channels.incoming_links["a->c", 1]
        await until(lambda: incoming_link.waiting_bytes > 300)
        assert incoming_link.waiting_bytes <= 400  # the rest waits at a, without credit
        assert hosts.timeline("a").outbox.outgoing_links["a->c"].backlog_bytes > 0
        hosts.ask("b", begun)
        taken = await hosts.snapshot(begun)
        assert taken.in_flight_messages == 0
        assert msgspec.msgpack.decode(taken.fragments["c"].state.data)["received"] == [
            ["a->c", "before"],
            ["b->c", "passes"],
        ]
        await until(lambda: len(hosts.received) == 102)
        assert hosts.received[2:] == [f"behind {number:03}" for number in range(100)]

    run_joined(scenario, tmp_path, "aligned", **SMALL)


def test_E3_frames_of_the_last_barrier_count_in_the_recording_bound(tmp_path: Path) -> None:
    async def scenario(hosts: Joined) -> None:
        hosts.block()
        for name in "ab":
            hosts.send(name, *(bytes(1600) for _ in range(8)))
        await until(lambda: len(hosts.timeline("c").inbox) == 16)
        disk = threading.Event()
        hosts.coordinator.hosts["c"].writer.submit(disk.wait, 20)  # nothing is stored meanwhile
        begun = hosts.begin()
        for name in "ab":
            hosts.ask(name, begun)
        await until(lambda: hosts.timeline("c").recordings.spills == 1)
        assert not hosts.timeline("c").protocol.open
        disk.set()
        taken = await hosts.snapshot(begun)
        assert taken.in_flight_messages == 16
        hosts.go_on()
        await until(lambda: len(hosts.received) == 16)

    run_joined(scenario, tmp_path, "unaligned", recording_bytes_max=40_000, frame_messages_max=1)


def test_E6_an_abort_resumes_the_held_channels(tmp_path: Path) -> None:
    async def scenario(hosts: Joined) -> None:
        begun = hosts.begin()
        hosts.ask("a", begun)
        await until(lambda: "a->c" in hosts.timeline("c").inbox.held)
        hosts.send("a", 1, 2, 3)
        hosts.coordinator.links["c"].send(ReportOutcome("c", begun.snapshot, False))
        await until(lambda: hosts.received == [1, 2, 3])
        assert not hosts.timeline("c").inbox.held

    run_joined(scenario, tmp_path, "aligned")


def test_E7_held_channels_resume_without_an_outcome(tmp_path: Path) -> None:
    async def scenario(hosts: Joined) -> None:
        hosts.ask("a", hosts.begin())
        hosts.send("a", "in the end")
        await until(lambda: hosts.received == ["in the end"])

    run_joined(scenario, tmp_path, "aligned", patience_s=0.05)


def test_V4_a_barrier_overtakes_both_queues_and_loses_nothing(tmp_path: Path) -> None:
    async def scenario(hosts: Joined) -> None:
        hosts.block()
        sent = [f"waits {number:03}" for number in range(200)]
        hosts.send("a", *sent)
        await until(lambda: hosts.timeline("c").inbox)
        assert hosts.timeline("a").outbox.outgoing_links["a->c"].backlog_bytes > 0
        begun = hosts.begin()
        for name in "ab":
            hosts.ask(name, begun)
        taken = await hosts.snapshot(begun)  # complete, and c has not received anything
        assert hosts.received == []
        assert messages(taken.fragments["c"].in_flight["a->c"]) == sent
        assert 0 < len(hosts.timeline("c").inbox) < 200
        hosts.go_on()
        await until(lambda: len(hosts.received) == 200)
        assert hosts.received == sent
        again = await hosts.snapshot(_begin_and_ask(hosts))
        assert again.in_flight_messages == 0

    run_joined(scenario, tmp_path, "unaligned", **SMALL)


def test_R1_overtaken_frames_are_received_once_after_a_rollback(tmp_path: Path) -> None:
    async def scenario(hosts: Joined) -> None:
        hosts.block()
        sent = [f"waits {number:03}" for number in range(200)]
        hosts.send("a", *sent)
        await until(lambda: hosts.timeline("c").inbox)
        taken = await hosts.snapshot(_begin_and_ask(hosts))
        assert taken.in_flight_messages == 200
        hosts.go_on()
        await until(lambda: len(hosts.received) > 10)  # the rollback undoes these
        hosts.send("a", "sent after the cut")
        await hosts.coordinator.begin("abc", restored=str(taken.id), epoch=2)
        hosts.send("a", "sent in the new epoch")
        await until(lambda: len(hosts.received) == 201)
        assert hosts.received == [*sent, "sent in the new epoch"]
        again = await hosts.snapshot(_begin_and_ask(hosts))
        assert again.in_flight_messages == 0

    run_joined(scenario, tmp_path, "unaligned", **SMALL)


def _begin_and_ask(hosts: Joined) -> SnapshotBegun:
    begun = hosts.begin()
    for name in "ab":
        hosts.ask(name, begun)
    return begun


@pytest.mark.parametrize("held", [True, False], ids=["held at c", "waiting at a and c"])
def test_V5_alignment_that_takes_too_long_turns_unaligned(tmp_path: Path, held: bool) -> None:
    async def scenario(hosts: Joined) -> None:
        sent = [f"waits {number:03}" for number in range(100)]
        if held:  # b's barrier does not arrive before the timeout: b is slow
            begun = hosts.begin()
            hosts.ask("a", begun)
            await until(lambda: "a->c" in hosts.timeline("c").inbox.held)
            hosts.send("a", *sent)
            await until(lambda: hosts.timeline("c").channels.incoming_links["a->c", 1].waiting_bytes)
            assert hosts.received == []
            hosts.time_out(begun)
            await until(lambda: begun.snapshot in hosts.timeline("c").protocol.open)
            await until(lambda: hosts.received == sent)
            hosts.send("b", "late")
            await until(lambda: hosts.received == [*sent, "late"])
            hosts.ask("b", begun)
            taken = await hosts.snapshot(begun)
            assert messages(taken.fragments["c"].in_flight["b->c"]) == ["late"]
        else:
            hosts.block()
            hosts.send("a", *sent)
            taken = await hosts.snapshot(_begin_and_ask(hosts))
            assert hosts.received == []
            assert messages(taken.fragments["c"].in_flight["a->c"]) == sent
            hosts.go_on()
            await until(lambda: hosts.received == sent)

    run_joined(scenario, tmp_path, "aligned-then-unaligned", alignment_s=600 if held else 0.02, **SMALL)


@pytest.mark.parametrize("seed", range(3))
def test_M2_barriers_overtake_once_and_in_order_across_reconnects(seed: int) -> None:
    """The frames received before a barrier and those it has overtaken are together all frames sent before it."""

    async def scenario() -> None:
        random = Random(seed)
        settings = NodeSettings(window_bytes=5_000, backlog_bytes_max=50_000)
        target, source = Target(settings, consumes=False), Source(settings)
        listener = await Listener.open(LOCAL, 0, gate=target)
        proxy = CuttingProxy(listener.port, random, 40_000)
        await proxy.open()
        source.outgoing_link.reach((LOCAL, proxy.port))
        barriers = []
        for number in range(400):
            source.send(bytes(random.randrange(500)))
            if number % 20 == 19:
                source.overtake(number)
                barriers.append(source.outgoing.count)
                await until(lambda: len(target.barriers) == len(barriers))
            while source.outgoing_link.full:
                target.consume(8)
                await asyncio.sleep(0)
            target.consume(random.randint(0, 2))
        proxy.cutting = False
        while len(target.heard) < 400:
            target.consume(8)
            await asyncio.sleep(0)
        assert target.incoming.frontier() == source.outgoing.frontier()
        assert [marker.sent_count for marker, _ in target.barriers] == barriers
        for (marker, overtaken), count in zip(target.barriers, target.counts_at_barriers, strict=True):
            assert [*range(1, count + 1), *overtaken] == list(range(1, (marker.sent_count or 0) + 1))
        assert proxy.cuts > 5
        assert any(overtaken for _, overtaken in target.barriers)
        source.outgoing_link.close()
        await proxy.close()
        await listener.close()

    run(scenario())


def test_E3_unsent_barriers_copy_nothing_and_the_newest_are_sent() -> None:
    """E3: the link stays down, while snapshots time out and are retried."""

    async def scenario() -> None:
        source, target = Source(), Target(consumes=False)
        for _ in range(20):
            source.send(bytes(1000))
        for counter in range(1, 101):
            source.overtake(counter)
        assert source.outgoing_link.unacknowledged <= 20 + AHEAD_MAX
        listener = await Listener.open(LOCAL, 0, gate=target)
        source.outgoing_link.reach((LOCAL, listener.port))
        await until(lambda: len(target.barriers) == AHEAD_MAX)
        assert [marker.snapshot.counter for marker, _ in target.barriers] == [97, 98, 99, 100]
        assert all(overtaken == list(range(1, 21)) for _, overtaken in target.barriers)
        source.outgoing_link.close()
        await listener.close()

    run(scenario())
