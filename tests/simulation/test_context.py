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


def test_a_message_of_an_undeclared_type_is_refused_where_it_is_sent() -> None:
    with pytest.raises(
        UserCodeFailed, match=r"process 'a' sends a message of type list on 'a->b', .* \(.*test_context.py:\d+\)"
    ):
        simulate(on_start=lambda ctx: ctx.send("a->b", [1]))
