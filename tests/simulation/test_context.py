"""A context is for the handlers of its process, in their thread; in the simulator as live."""

import threading
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from strobe.errors import UsageError, UserCodeFailed
from strobe.process import Channel, Context, Process, System
from strobe.simulation.world import World

Use = Callable[[Context], object]


class Hello(msgspec.Struct):
    pass


class Sender(Process):
    def __init__(self, on_start: Use, on_capture: Use) -> None:
        self.on_start, self.on_capture = on_start, on_capture

    def start(self, ctx: Context) -> None:
        self.ctx = ctx
        self.on_start(ctx)

    def receive(self, ctx: Context, channel: str, message: Any) -> None:
        pass

    def capture(self) -> bytes:
        if hasattr(self, "ctx"):
            self.on_capture(self.ctx)
        return b""

    def restore(self, state: Any) -> None:
        pass


def nothing(ctx: Context) -> None:
    pass


def simulate(on_start: Use = nothing, on_capture: Use = nothing) -> None:
    processes = {"a": Sender(on_start, on_capture), "b": Sender(nothing, nothing)}
    World(System(processes, [Channel("a", "b")], [Hello]), 1).run(1)


USES: dict[str, Use] = {
    "sends on 'a->b'": lambda ctx: ctx.send("a->b", Hello()),
    "sends on 'b->a'": lambda ctx: ctx.send_many("b->a", [Hello()]),
    "sets the timer 't'": lambda ctx: ctx.set_timer("t", 1.0),
    "cancels the timer 't'": lambda ctx: ctx.cancel_timer("t"),
    "emits a record": lambda ctx: ctx.emit(1),
    "requests a snapshot": lambda ctx: ctx.snapshot(),
}


@pytest.mark.parametrize(("action", "use"), USES.items(), ids=USES.keys())
def test_a_context_is_refused_inside_capture(action: str, use: Use) -> None:
    with pytest.raises(UserCodeFailed, match=rf"in capture\(\).*process 'a' {action} while none of its handlers"):
        simulate(on_capture=use)


@pytest.mark.parametrize(("action", "use"), USES.items(), ids=USES.keys())
def test_a_context_is_refused_in_another_thread(action: str, use: Use) -> None:
    problems: list[str] = []

    def in_thread(ctx: Context) -> None:
        def attempt() -> None:
            with pytest.raises(UsageError) as caught:
                use(ctx)
            problems.append(str(caught.value))

        thread = threading.Thread(target=attempt)
        thread.start()
        thread.join()

    simulate(on_start=in_thread)
    assert len(problems) == 1
    assert problems[0].startswith(f"process 'a' {action} while none of its handlers runs, or in another thread")


@pytest.mark.parametrize(
    ("channel", "batch", "problem"),
    [
        ("a->b", [Hello(), [1], Hello()], "process 'a' sends a message of type list on 'a->b'"),
        ("a->b", [Hello(), object()], "the message that process 'a' sends on 'a->b' cannot be encoded: object"),
        ("a->c", [], "process 'a' sends on 'a->c', which is not an output of it; outputs: a->b"),
        ("a->b", "hello", "process 'a' calls send_many on 'a->b' with a str; give it a list of messages"),
    ],
)
def test_E13_a_batch_is_sent_as_a_whole_or_not_at_all(channel: str, batch: Any, problem: str) -> None:
    """E13: the same as live: see tests/runtime/node/sockets/test_send_many.py."""
    refused: list[str] = []

    def send(ctx: Context) -> None:
        with pytest.raises(UsageError) as caught:
            ctx.send_many(channel, batch)
        refused.append(str(caught.value))
        ctx.send_many("a->b", (Hello() for _ in range(2)))

    system = System({"a": Sender(send, nothing), "b": Sender(nothing, nothing)}, [Channel("a", "b")], [Hello])
    world = World(system, 1)
    world.run(1)
    assert refused[0].startswith(problem)
    assert len(world.journal.channels["a->b", 1].payloads) == 2


def test_a_message_of_an_undeclared_type_is_refused_where_it_is_sent() -> None:
    with pytest.raises(
        UserCodeFailed, match=r"process 'a' sends a message of type list on 'a->b', .* \(.*test_context.py:\d+\)"
    ):
        simulate(on_start=lambda ctx: ctx.send("a->b", [1]))
