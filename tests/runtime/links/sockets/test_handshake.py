"""Two ends of a link over real TCP: refusals, and the end of a channel."""

import asyncio
import logging

import msgspec
import pytest
from tests.runtime.link_ends import (
    EPOCH,
    HELLO,
    SPEC,
    Source,
    Target,
    run,
    until,
)

from strobe.runtime.links.codec import Hello, Refusal
from strobe.runtime.links.handshake import Rejections
from strobe.runtime.links.incoming_link import IncomingLink
from strobe.runtime.links.listener import Listener

LOCAL = "127.0.0.1"

pytestmark = pytest.mark.usefixtures("short_back_off")


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"system": "another shop"}, "stranger"),
        ({"epoch": EPOCH - 1}, "older epoch"),
        ({"version": 99}, "another version"),
        ({"channel": "a->c"}, "unknown channel"),
    ],
)
def test_R1_a_final_refusal_ends_the_link_and_is_reported(change: dict[str, object], reason: str) -> None:
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
def test_a_refusal_by_a_stranger_does_not_hold_at_a_new_address(reason: str) -> None:
    """The target has moved, and a node of another system listens at its old address."""

    class Stranger(Target):
        def admit(self, hello: Hello) -> IncomingLink | Refusal:
            return Refusal(reason, final=True)

    async def scenario() -> None:
        target, source = Target(), Source()
        stranger = await Listener.open(LOCAL, 0, gate=Stranger())
        listener = await Listener.open(LOCAL, 0, gate=target)
        source.send(1)
        source.outgoing_link.reach((LOCAL, stranger.port))
        await until(lambda: source.refusals)
        source.outgoing_link.reach((LOCAL, stranger.port))
        assert source.outgoing_link.refusal is not None, "a refused link sends nothing more"
        source.outgoing_link.reach((LOCAL, listener.port))
        await until(lambda: target.heard)
        assert source.outgoing_link.refusal is None
        source.outgoing_link.close()
        await stranger.close()
        await listener.close()

    run(scenario())


def test_R1_a_temporary_refusal_is_retried_until_accepted() -> None:
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


def test_a_source_with_a_different_history_is_refused() -> None:
    async def scenario() -> None:
        target, source, other = Target(), Source(), Source()
        listener = await Listener.open(LOCAL, 0, gate=target)
        source.outgoing_link.reach((LOCAL, listener.port))
        source.send(1)
        await until(lambda: target.heard)
        source.outgoing_link.close()
        other.outgoing_link.reach((LOCAL, listener.port))
        await until(lambda: other.refusals)
        assert other.refusals == [(SPEC.id, "another past")]
        assert other.outgoing_link.rejections.counts == {"another past": 1}
        await listener.close()

    run(scenario())


def test_a_finished_link_ends_when_the_target_has_everything() -> None:
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
        unused = Source()
        unused.outgoing_link.finish()
        assert unused.outgoing_link.closed
        await listener.close()

    run(scenario())


class JumpingLoop(asyncio.SelectorEventLoop):
    """An event loop whose clock can jump ahead."""

    jumped_s = 0.0

    def time(self) -> float:
        return super().time() + self.jumped_s


def test_E2_an_ended_channel_delivers_even_if_its_target_is_late() -> None:
    """E2: the target waits for these messages, and no snapshot is taken before they arrive."""

    async def scenario() -> None:
        target, source = Target(), Source()
        source.send(1)
        source.show_view()
        source.outgoing_link.finish()
        asyncio.get_running_loop().jumped_s = 3600.0  # type: ignore[attr-defined]
        await asyncio.sleep(0.01)
        assert not source.outgoing_link.closed
        listener = await Listener.open(LOCAL, 0, gate=target)
        source.outgoing_link.reach((LOCAL, listener.port))
        await until(lambda: source.outgoing_link.closed)
        assert target.heard == source.said
        await listener.close()

    with asyncio.Runner(loop_factory=JumpingLoop) as runner:
        runner.run(scenario())


def test_a_finished_link_to_a_later_incarnation_ends() -> None:
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


def test_writes_to_a_closed_link_are_dropped() -> None:
    async def scenario() -> None:
        source = Source()
        source.outgoing_link.close()
        source.send(1)
        source.outgoing_link.reach((LOCAL, 1))
        assert source.outgoing_link.unacknowledged == 0
        assert source.outgoing_link.closed

    run(scenario())


def test_rejections_are_all_counted_and_logged_at_most_once_a_second(caplog: pytest.LogCaptureFixture) -> None:
    now_s = 100.0
    rejections = Rejections(clock=lambda: now_s)
    with caplog.at_level(logging.WARNING, logger="strobe.links"):
        for _ in range(1000):
            rejections.note("garbage", "no frame", "somewhere")
        rejections.note("gap", "3 arrived, but 2 was expected", "a peer")
        now_s += 1.5
        rejections.note("garbage", "no frame", "somewhere")
    assert rejections.counts == {"garbage": 1001, "gap": 1}
    assert len(caplog.records) == 3
    assert "999 more" in caplog.records[-1].getMessage()
