"""Two ends of a link over real TCP: order and credit."""

import asyncio
from random import Random

import msgspec
from tests.runtime.link_ends import (
    Source,
    Target,
    marker,
    run,
    until,
)

from strobe.runtime.links import outgoing_link
from strobe.runtime.links.listener import Listener
from strobe.runtime.settings import NodeSettings

LOCAL = "127.0.0.1"


def test_frames_markers_and_views_arrive_in_order() -> None:
    async def scenario() -> None:
        target, source = Target(), Source()
        listener = await Listener.open(LOCAL, 0, gate=target)
        source.show_view()
        source.send(1, 2, 3)  # before there is a connection
        source.outgoing_link.reach((LOCAL, listener.port))
        await until(lambda: source.outgoing_link.connected)
        source.mark(1)
        for number in range(500):
            source.send(number)
            if number % 50 == 0:
                source.mark(number)
        await until(lambda: len(target.heard) == len(source.said))
        assert target.heard == source.said
        assert target.incoming.frontier() == source.outgoing.frontier()
        await until(lambda: source.outgoing_link.unacknowledged == 0 and source.outgoing_link.outstanding_bytes == 0)
        assert source.outgoing_link.reconnects == 0
        assert not listener.rejected
        source.outgoing_link.close()
        await listener.close()

    run(scenario())


def test_a_target_that_consumes_nothing_gets_no_more_than_its_window() -> None:
    async def scenario() -> None:
        settings = NodeSettings(window_bytes=10_000, backlog_bytes_max=5_000)
        target, source = Target(settings, consumes=False), Source(settings)
        listener = await Listener.open(LOCAL, 0, gate=target)
        source.outgoing_link.reach((LOCAL, listener.port))
        await until(lambda: source.outgoing_link.connected)
        written = 0
        for number in range(40):
            written += source.send(bytes(1000))
            outgoing_link = source.outgoing_link
            assert outgoing_link.outstanding_bytes <= 10_000
            assert outgoing_link.backlog_bytes == written - outgoing_link.outstanding_bytes
            assert outgoing_link.full == (outgoing_link.backlog_bytes > 5_000), number
        source.mark(1)
        sent_bytes = source.outgoing_link.outstanding_bytes
        assert sent_bytes > 8_000
        await until(lambda: target.incoming_link.received_bytes == sent_bytes)
        await until(lambda: source.outgoing_link.waiting_s > 0)
        assert source.rooms == 0
        while target.incoming_link.received_bytes < written:
            target.consume(1)
            assert source.outgoing_link.outstanding_bytes <= 10_000
            await asyncio.sleep(0)
        await until(lambda: source.outgoing_link.unacknowledged == 0)
        assert target.heard == source.said
        assert source.rooms == 1
        assert source.outgoing_link.waiting_s == 0
        assert source.outgoing_link.backlog_bytes == 0
        source.outgoing_link.close()
        await listener.close()

    run(scenario())


def test_markers_need_no_credit() -> None:
    async def scenario() -> None:
        settings = NodeSettings(window_bytes=1_000)
        target, source = Target(settings, consumes=False), Source(settings)
        listener = await Listener.open(LOCAL, 0, gate=target)
        source.outgoing_link.reach((LOCAL, listener.port))
        await until(lambda: source.outgoing_link.connected)
        source.send(bytes(900))
        for counter in range(100):
            source.mark(counter)
        await until(lambda: len(target.heard) == 101)
        source.send(bytes(900))
        source.mark(100)  # stays behind the waiting frame
        await until(lambda: source.outgoing_link.waiting_s > 0)
        assert len(target.heard) == 101
        target.consume(1)
        await until(lambda: len(target.heard) == 103)
        assert target.heard == source.said
        source.outgoing_link.close()
        await listener.close()

    run(scenario())


def test_a_frame_longer_than_the_window_is_sent_alone() -> None:
    async def scenario() -> None:
        settings = NodeSettings(window_bytes=1_000, frame_messages_max=1)
        target, source = Target(settings, consumes=False), Source(settings)
        listener = await Listener.open(LOCAL, 0, gate=target)
        source.outgoing_link.reach((LOCAL, listener.port))
        source.send("short")
        source.send(bytes(1_000_000))
        source.send("short")
        for count in range(1, 4):
            await until(lambda count=count: len(target.heard) == count)
            await until(lambda: source.outgoing_link.waiting_s > 0 or source.outgoing_link.backlog_bytes == 0)
            assert len(target.heard) == count
            target.consume(1)
        assert target.heard == source.said
        source.outgoing_link.close()
        await listener.close()

    run(scenario())


def test_bodies_stay_unchanged_while_they_are_held() -> None:
    async def scenario() -> None:
        settings = NodeSettings(window_bytes=300_000)
        target, source = Target(settings), Source(settings)
        listener = await Listener.open(LOCAL, 0, gate=target)
        source.outgoing_link.reach((LOCAL, listener.port))
        random = Random(5)
        for number in range(400):
            source.send(number, random.randbytes(random.choice((10, 20_000, 60_000))))
            while source.outgoing_link.full:
                await asyncio.sleep(0)
            if number % 7:
                del target.frames[::2]
        await until(lambda: len(target.heard) == 400)
        assert len(target.frames) >= 2
        for frame in target.frames:
            assert msgspec.msgpack.decode(frame.body) == source.said[frame.first_ordinal // 2]
        source.outgoing_link.close()
        await listener.close()

    run(scenario())


def test_frames_are_sent_at_flush_or_when_many_are_ready() -> None:
    async def scenario() -> None:
        target, source = Target(), Source()
        listener = await Listener.open(LOCAL, 0, gate=target)
        source.outgoing_link.reach((LOCAL, listener.port))
        await until(lambda: source.outgoing_link.connected)
        source.send(1, now=False)
        source.send(2, now=False)
        await asyncio.sleep(0.01)
        assert target.heard == []
        source.mark(1)
        await until(lambda: target.heard == [[1], [2], marker(1)])
        for _ in range(outgoing_link.READY_BYTES_MAX // 10_000 + 1):
            source.send(bytes(10_000), now=False)
        await until(lambda: target.heard == source.said)
        source.send(3, now=False)
        source.outgoing_link.finish()
        await until(lambda: source.outgoing_link.closed)
        assert target.heard == source.said
        await listener.close()

    run(scenario())
