"""Two ends of a link over real TCP: order, resume, credit, and what happens when a peer cannot be had."""

import asyncio
import logging
import socket
from random import Random

import msgspec
import pytest
from tests.runtime.link_ends import (
    EPOCH,
    HELLO,
    SPEC,
    CuttingProxy,
    Source,
    Target,
    marker,
    run,
    until,
)

from strobe.runtime.links import outgoing_link as outlet_module
from strobe.runtime.links.codec import Hello, Refusal
from strobe.runtime.links.incoming_link import IncomingLink
from strobe.runtime.links.listener import Listener
from strobe.runtime.settings import NodeSettings

LOCAL = "127.0.0.1"


@pytest.fixture(autouse=True)
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outlet_module, "BACK_OFF_S_MIN", 0.001)
    monkeypatch.setattr(outlet_module, "BACK_OFF_S_MAX", 0.004)


def test_frames_markers_and_views_arrive_in_the_order_in_which_they_were_written() -> None:
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


@pytest.mark.parametrize("seed", range(6))
def test_M2_nothing_is_lost_and_nothing_comes_twice_however_often_the_connection_is_cut(seed: int) -> None:
    """Connections end at random bytes, in handshakes, headers, bodies and credit; the window is small on purpose."""

    async def scenario() -> None:
        random = Random(seed)
        settings = NodeSettings(window_bytes=20_000, backlog_bytes_max=50_000)
        target, source = Target(settings, consumes=seed % 3 == 0), Source(settings)
        listener = await Listener.open(LOCAL, 0, gate=target)
        # A frame must fit between two cuts now and then: it is sent whole again.
        bytes_max, message_bytes_max = ((4_000, 600), (60_000, 9_000))[seed % 2]
        proxy = CuttingProxy(listener.port, random, bytes_max)
        await proxy.open()
        source.outgoing_link.reach((LOCAL, proxy.port))
        for number in range(2000):
            size = message_bytes_max if number % 100 == 0 else 100
            messages = [bytes(random.randrange(size)) for _ in range(random.randint(1, 3))]
            source.send(*messages, now=random.random() < 0.5)
            if random.random() < 0.05:
                source.mark(number)
            target.consume(random.randint(0, 8))
            while source.outgoing_link.full:
                source.outgoing_link.flush()
                target.consume(8)
                await asyncio.sleep(0)
            if random.random() < 0.1:
                await asyncio.sleep(0)
        source.outgoing_link.flush()
        await _until_cut(proxy, 150, source, target)
        proxy.cutting = False
        while len(target.heard) < len(source.said):
            target.consume(8)
            await asyncio.sleep(0)
        assert target.heard == source.said
        assert target.incoming.frontier() == source.outgoing.frontier()
        assert source.outgoing_link.reconnects >= 50
        assert set(listener.rejected) <= {"no hello"}  # the connection was cut within it
        source.outgoing_link.close()
        await proxy.close()
        await listener.close()

    run(scenario())


async def _until_cut(proxy: CuttingProxy, cuts: int, source: Source, target: Target) -> None:
    """Go on sending until the proxy has cut that often."""
    while proxy.cuts < cuts:
        target.consume(8)
        if not source.outgoing_link.full:
            source.send(bytes(500))
        await asyncio.sleep(0)


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
        source.mark(100)  # stays behind what waits
        await until(lambda: source.outgoing_link.waiting_s > 0)
        assert len(target.heard) == 101
        target.consume(1)
        await until(lambda: len(target.heard) == 103)
        assert target.heard == source.said
        source.outgoing_link.close()
        await listener.close()

    run(scenario())


def test_a_frame_longer_than_the_window_goes_alone() -> None:
    async def scenario() -> None:
        settings = NodeSettings(window_bytes=1_000, frame_messages_max=1)
        target, source = Target(settings, consumes=False), Source(settings)
        listener = await Listener.open(LOCAL, 0, gate=target)
        source.outgoing_link.reach((LOCAL, listener.port))
        source.send("short")
        source.send(bytes(1_000_000))
        source.send("short")
        for heard in range(1, 4):
            await until(lambda heard=heard: len(target.heard) == heard)
            await until(lambda: source.outgoing_link.waiting_s > 0 or source.outgoing_link.backlog_bytes == 0)
            assert len(target.heard) == heard
            target.consume(1)
        assert target.heard == source.said
        source.outgoing_link.close()
        await listener.close()

    run(scenario())


def test_bodies_stay_as_they_came_for_as_long_as_they_are_held() -> None:
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


def test_the_target_moves_and_the_source_goes_on_there() -> None:
    async def scenario() -> None:
        target, source = Target(), Source()
        first = await Listener.open(LOCAL, 0, gate=target)
        second = await Listener.open(LOCAL, 0, gate=target)
        source.outgoing_link.reach(None)
        source.send(1)
        source.outgoing_link.reach((LOCAL, first.port))
        await until(lambda: target.heard)
        source.outgoing_link.reach(None)
        assert not source.outgoing_link.connected
        source.send(2)
        source.outgoing_link.reach((LOCAL, second.port))
        await until(lambda: len(target.heard) == 2)
        assert target.heard == source.said
        assert source.outgoing_link.reconnects == 1
        source.outgoing_link.close()
        await first.close()
        await second.close()

    run(scenario())


def test_what_is_put_goes_together_and_a_lot_of_it_goes_at_once() -> None:
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
        for _ in range(outlet_module.READY_BYTES_MAX // 10_000 + 1):
            source.send(bytes(10_000), now=False)
        await until(lambda: target.heard == source.said)
        source.send(3, now=False)
        source.outgoing_link.finish()
        await until(lambda: source.outgoing_link.closed)
        assert target.heard == source.said
        await listener.close()

    run(scenario())


def test_what_is_put_and_not_gone_when_the_connection_ends_goes_on_the_next_one() -> None:
    async def scenario() -> None:
        target, source = Target(), Source()
        listener = await Listener.open(LOCAL, 0, gate=target)
        source.outgoing_link.reach((LOCAL, listener.port))
        await until(lambda: source.outgoing_link.connected)
        source.send(1, now=False)
        source.outgoing_link.reach(None)
        source.send(2, now=False)
        source.outgoing_link.flush()
        source.outgoing_link.reach((LOCAL, listener.port))
        await until(lambda: target.heard == source.said)
        assert target.incoming_link.duplicates == 0
        source.outgoing_link.close()
        await listener.close()

    run(scenario())


def test_a_source_finds_a_target_that_comes_up_later(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario(port: int) -> None:
        target, source = Target(), Source()
        source.outgoing_link.reach((LOCAL, port))
        source.send(1)
        await until(lambda: f"{LOCAL}:{port} cannot be reached" in caplog.text)
        listener = await Listener.open(LOCAL, port, gate=target)
        await until(lambda: target.heard)
        source.outgoing_link.close()
        await listener.close()

    caplog.set_level(logging.DEBUG, "strobe")
    with socket.socket() as held:  # nobody else gets the port meanwhile, and nobody can connect to it
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        held.bind((LOCAL, 0))
        run(scenario(held.getsockname()[1]))


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"system": "another shop"}, "stranger"),
        ({"epoch": EPOCH - 1}, "older epoch"),
        ({"version": 99}, "another version"),
        ({"channel": "a->c"}, "unknown channel"),
    ],
)
def test_R1_a_final_refusal_ends_the_outlet_and_is_told(change: dict[str, object], reason: str) -> None:
    async def scenario() -> None:
        hello = msgspec.convert({**msgspec.to_builtins(HELLO), **change}, Hello)
        target, source = Target(), Source(hello=hello)
        listener = await Listener.open(LOCAL, 0, gate=target)
        source.send(1)
        source.outgoing_link.reach((LOCAL, listener.port))
        await until(lambda: source.refusals)
        assert source.refusals == [(hello.channel, reason)]
        assert listener.rejected == {reason: 1}
        source.outgoing_link.reach((LOCAL, listener.port))
        assert not target.heard
        source.outgoing_link.close()
        await listener.close()

    run(scenario())


@pytest.mark.parametrize("reason", ["stranger", "another version"])
def test_what_a_stranger_refuses_is_sent_when_the_target_is_found_elsewhere(reason: str) -> None:
    """The target has moved, and another system listens at its old place."""

    class Stranger(Target):
        def admit(self, hello: Hello) -> IncomingLink | Refusal:
            return Refusal(reason, final=True)

    async def scenario() -> None:
        target, source = Target(), Source()
        strange = await Listener.open(LOCAL, 0, gate=Stranger())
        listener = await Listener.open(LOCAL, 0, gate=target)
        source.send(1)
        source.outgoing_link.reach((LOCAL, strange.port))
        await until(lambda: source.refusals)
        source.outgoing_link.reach((LOCAL, strange.port))
        assert source.outgoing_link.refusal is not None, "that one has said all that it has to say"
        source.outgoing_link.reach((LOCAL, listener.port))
        await until(lambda: target.heard)
        assert source.outgoing_link.refusal is None
        source.outgoing_link.close()
        await strange.close()
        await listener.close()

    run(scenario())


def test_R1_a_refusal_for_now_is_tried_again_until_the_target_is_there() -> None:
    async def scenario() -> None:
        target, source = Target(), Source()
        target.later.add(SPEC.id)
        listener = await Listener.open(LOCAL, 0, gate=target)
        source.outgoing_link.reach((LOCAL, listener.port))
        source.send(1)
        await until(lambda: listener.rejected["not in view yet"] >= 3)
        assert not source.refusals
        target.later.clear()
        await until(lambda: target.heard)
        source.outgoing_link.close()
        await listener.close()

    run(scenario())


def test_an_outlet_that_starts_anew_where_the_target_remembers_another_past_is_ended() -> None:
    async def scenario() -> None:
        target, source, double = Target(), Source(), Source()
        listener = await Listener.open(LOCAL, 0, gate=target)
        source.outgoing_link.reach((LOCAL, listener.port))
        source.send(1)
        await until(lambda: target.heard)
        source.outgoing_link.close()
        double.outgoing_link.reach((LOCAL, listener.port))
        await until(lambda: double.refusals)
        assert double.refusals == [(SPEC.id, "another past")]
        assert double.outgoing_link.rejections.counts == {"another past": 1}
        await listener.close()

    run(scenario())


def test_a_finished_outlet_ends_when_the_target_has_everything() -> None:
    async def scenario() -> None:
        target, source = Target(), Source()
        listener = await Listener.open(LOCAL, 0, gate=target)
        source.send(1)
        source.show_view()
        source.outgoing_link.finish()
        source.outgoing_link.reach((LOCAL, listener.port))
        await until(lambda: source.outgoing_link.closed)
        assert target.heard == source.said
        await until(lambda: not listener.connections)
        nothing_to_say = Source()
        nothing_to_say.outgoing_link.finish()
        assert nothing_to_say.outgoing_link.closed
        await listener.close()

    run(scenario())


class LeapingLoop(asyncio.SelectorEventLoop):
    """A loop on whose clock any time can pass at once."""

    leapt_s = 0.0

    def time(self) -> float:
        return super().time() + self.leapt_s


def test_E2_what_was_sent_on_a_channel_that_has_ended_arrives_however_long_the_target_cannot_be_reached() -> None:
    """E2: the target waits for it, and nobody takes a snapshot meanwhile."""

    async def scenario() -> None:
        target, source = Target(), Source()
        source.send(1)
        source.show_view()
        source.outgoing_link.finish()
        asyncio.get_running_loop().leapt_s = 3600.0  # type: ignore[attr-defined]
        await asyncio.sleep(0.01)
        assert not source.outgoing_link.closed
        listener = await Listener.open(LOCAL, 0, gate=target)
        source.outgoing_link.reach((LOCAL, listener.port))
        await until(lambda: source.outgoing_link.closed)
        assert target.heard == source.said
        await listener.close()

    with asyncio.Runner(loop_factory=LeapingLoop) as runner:
        runner.run(scenario())


def test_a_finished_outlet_whose_target_is_another_incarnation_now_ends() -> None:
    async def scenario() -> None:
        target, source = Target(), Source(hello=msgspec.structs.replace(HELLO, channel="a->c"))
        listener = await Listener.open(LOCAL, 0, gate=target)
        source.send(1)
        source.outgoing_link.finish()
        source.outgoing_link.reach((LOCAL, listener.port))
        await until(lambda: source.outgoing_link.closed)
        assert source.refusals == [("a->c", "unknown channel")]
        await listener.close()

    run(scenario())


def test_what_is_written_to_a_closed_outlet_goes_nowhere() -> None:
    async def scenario() -> None:
        source = Source()
        source.outgoing_link.close()
        source.send(1)
        source.outgoing_link.reach((LOCAL, 1))
        assert source.outgoing_link.unacknowledged == 0
        assert source.outgoing_link.closed

    run(scenario())


def test_a_link_tries_again_whatever_its_attempt_has_failed_of(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """It may be no trouble of the network: where no thread can be started, a name cannot be looked up."""

    async def scenario() -> None:
        target, source = Target(), Source()
        listener = await Listener.open(LOCAL, 0, gate=target)
        with monkeypatch.context() as broken:
            broken.setattr(outlet_module, "CONNECT_TIMEOUT_S", "no number")
            source.outgoing_link.reach((LOCAL, listener.port))
            await until(lambda: "cannot be reached" in caplog.text)
        source.send(1)
        await until(lambda: target.heard)
        source.outgoing_link.close()
        await listener.close()

    caplog.set_level(logging.DEBUG, "strobe")
    run(scenario())


def test_a_target_that_answers_nonsense_is_left_and_tried_again() -> None:
    async def scenario() -> None:
        answers = iter((b"\xff" * 200, bytes(40)))
        real, source = Target(), Source()
        listener = await Listener.open(LOCAL, 0, gate=real)

        async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writer.write(next(answers, b""))
            await writer.drain()
            await reader.read()
            writer.close()

        server = await asyncio.start_server(answer, LOCAL, 0)
        source.outgoing_link.reach((LOCAL, server.sockets[0].getsockname()[1]))
        await until(lambda: source.outgoing_link.rejections.counts["garbage"] == 2)
        source.outgoing_link.reach((LOCAL, listener.port))
        source.send(1)
        await until(lambda: real.heard)
        source.outgoing_link.close()
        server.close()
        await server.wait_closed()
        await listener.close()

    run(scenario())
