"""Handlers that Strobe cannot call are refused by name, when the system is built or at the call (E13)."""

import functools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from strobe.declarations import declare
from strobe.detection import Detecting
from strobe.errors import UsageError, UserCodeFailed
from strobe.handlers import DECLARING, PROCESS, call, check_function
from strobe.process import Channel, Process, System, takes_batches
from strobe.runtime.connectors.file_sink import FileSink
from strobe.runtime.connectors.file_source import FileSource
from strobe.simulation.world import World
from strobe.storage.content.state_codec import encode_captured

HERE = Path(__file__).name


class Right(Process):
    """Has every handler with the right signature."""

    def receive(self, ctx: Any, channel: str, message: Any) -> None:
        pass

    def capture(self) -> bytes:
        return b""

    def restore(self, state: bytes) -> None:
        pass


class AtOnce(Right):
    """Receives the messages of a frame at once."""

    def receive_many(self, ctx: Any, channel: str, messages: list[Any]) -> None:
        pass


def build(kind: type[Process], **options: Any) -> System:
    return System({"a": kind(), "b": Right()}, [Channel("b", "a")], **options)


def refusal(kind: type[Process], **options: Any) -> str:
    with pytest.raises(UsageError) as refused:
        build(kind, **options)
    return str(refused.value)


async def coroutine_function(*_: Any) -> None:
    pass


async def async_generator_function(*_: Any) -> Any:
    yield 1


def generator_function(*_: Any) -> Iterator[int]:
    yield 1


class AsyncCallable:
    async def __call__(self, *_: Any) -> None:
        pass


def logged(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def wrapper(*arguments: Any) -> Any:
        return function(*arguments)

    return wrapper


DISGUISES: dict[str, Any] = {
    "async": coroutine_function,
    "async generator": async_generator_function,
    "partial": functools.partial(coroutine_function, 1),
    "partialmethod": functools.partialmethod(coroutine_function, 1),
    "wraps": logged(coroutine_function),
    "wraps twice": logged(logged(coroutine_function)),
    "static": staticmethod(coroutine_function),
    "class": classmethod(coroutine_function),
    "object": AsyncCallable(),
}
METHODS = [shape.name for shape in (*PROCESS, *DECLARING)]


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("disguise", DISGUISES)
def test_an_async_handler_is_refused_in_every_disguise(method: str, disguise: str) -> None:
    error = refusal(type("Mine", (Right,), {method: DISGUISES[disguise]}))
    assert error.startswith(f"process 'a': Mine.{method} is async (")
    assert HERE in error
    assert error.endswith(", without async")


@pytest.mark.parametrize("method", [method for method in METHODS if method != "references"])
def test_a_generator_handler_is_refused(method: str) -> None:
    error = refusal(type("Mine", (Right,), {method: generator_function}))
    assert error.startswith(f"process 'a': Mine.{method} has a yield in it (")


def test_an_inherited_async_handler_is_refused_with_its_own_line() -> None:
    base = type("Base", (Right,), {"receive": coroutine_function})
    line = coroutine_function.__code__.co_firstlineno
    error = refusal(type("Mine", (base,), {}))
    assert f"Mine.receive is async ({Path(__file__).relative_to(Path.cwd())}:{line})" in error
    assert "write def receive(self, ctx, channel, message), without async" in error


def test_references_may_be_yielded() -> None:
    class Mine(Right):
        def references(self) -> Iterator[str]:
            yield "b"

    assert build(Mine).processes["a"].references


def test_a_wrapper_may_run_a_generator_function() -> None:
    yielded: list[int] = []

    @functools.wraps(generator_function)
    def drained(*arguments: Any) -> None:
        yielded.extend(generator_function(*arguments))

    process = build(type("Mine", (Right,), {"receive": drained})).processes["a"]
    call(process, "receive", None, "b->a", 1)
    assert yielded == [1]


@pytest.mark.parametrize(
    ("method", "parameters"),
    [("receive", "self, ctx, message"), ("timer", "self, ctx"), ("start", "self"), ("capture", "self, ctx")],
)
def test_wrong_parameters_are_refused_with_the_right_signature(method: str, parameters: str) -> None:
    names: dict[str, Any] = {}
    exec(f"def {method}({parameters}): pass", names)
    error = refusal(type("Mine", (Right,), {method: names[method]}))
    right = {"receive": "ctx, channel, message", "timer": "ctx, name", "start": "ctx", "capture": ""}[method]
    assert f"Mine.{method} takes (" in error
    assert f"Strobe calls {method}({right}): write def {method}({', '.join(filter(None, ['self', right]))})" in error


@given(st.integers(0, 6), st.integers(0, 3), st.booleans())
def test_exactly_the_signatures_that_take_the_arguments_are_accepted(needed: int, more: int, rest: bool) -> None:
    parameters = [f"p{number}" for number in range(needed)] + [f"d{number}=0" for number in range(more)]
    names: dict[str, Any] = {}
    exec(f"def receive({', '.join([*parameters, *(['*rest'] if rest else [])])}): pass", names)
    fits = needed <= 3 and (rest or needed + more >= 3)
    shape = PROCESS[1]
    if fits:
        check_function("it", names["receive"], shape)
    else:
        with pytest.raises(UsageError, match="Strobe calls receive"):
            check_function("it", names["receive"], shape)


def test_an_attribute_in_the_place_of_a_handler_is_refused() -> None:
    class Mine(Right):
        def __init__(self) -> None:
            self.active = True  # type: ignore[method-assign, assignment]

    assert "Mine.active is a bool, not something that can be called; Strobe calls active()" in refusal(Mine)


def test_an_async_conserved_function_is_refused() -> None:
    error = refusal(Right, conserved=coroutine_function)
    assert error.startswith("`conserved` (coroutine_function) is async (")
    assert "write def conserved(states, messages), without async" in error
    assert "Strobe calls conserved(states, messages)" in refusal(Right, conserved=lambda states: 0)


def test_a_conserved_function_that_returns_a_coroutine_fails_in_a_call() -> None:
    system = build(Right, conserved=lambda states, messages: coroutine_function())
    with pytest.raises(
        UserCodeFailed, match="the function `conserved` of the system returned a coroutine of coroutine_fun"
    ):
        World(system, 1)


@pytest.mark.parametrize("method", ["open", "poll", "position_after", "stop_reading", "close"])
def test_an_async_method_of_a_source_is_refused(method: str, tmp_path: Path) -> None:
    kind = type("Mine", (FileSource,), {method: coroutine_function})
    error = refusal(Right, sources={"in": kind(tmp_path / "in", "a")})
    assert error.startswith(f"source 'in': Mine.{method} is async (")


@pytest.mark.parametrize("method", ["restore", "emit", "prepare", "release", "close"])
def test_an_async_method_of_a_sink_is_refused(method: str, tmp_path: Path) -> None:
    kind = type("Mine", (FileSink,), {method: coroutine_function})
    error = refusal(Right, sinks={"out": kind(tmp_path / "out", process="a")})
    assert error.startswith(f"sink 'out': Mine.{method} is async (")


def test_a_position_that_is_a_method_or_async_is_refused(tmp_path: Path) -> None:
    for found, problem in ((lambda self: 0, "is a method ("), (property(coroutine_function), "is async (")):
        kind = type("Mine", (FileSink,), {"position": found})
        assert f"Mine.position {problem}" in refusal(Right, sinks={"out": kind(tmp_path / "out", process="a")})


def test_a_wrapped_process_is_checked_too() -> None:
    with pytest.raises(UsageError, match=r"process under Detecting: Mine.receive is async"):
        Detecting(type("Mine", (Right,), {"receive": coroutine_function})())


@pytest.mark.parametrize("function", [coroutine_function, async_generator_function, generator_function])
def test_a_handler_that_returns_unfinished_work_fails_by_name(function: Callable[..., Any]) -> None:
    mine = type("Mine", (Right,), {"receive": lambda self, *arguments: function()})()
    build(type(mine))  # what it returns is known only when it is called
    with pytest.raises(UsageError, match=f"Mine.receive returned an? .* of {function.__name__} .*{HERE}:"):
        call(mine, "receive", None, "b->a", 1)


@pytest.mark.parametrize("returned", [None, 5, [1], "text", object()])
def test_what_a_handler_returns_otherwise_is_ignored(returned: Any) -> None:
    received: list[Any] = []

    def receive(self: Any, *arguments: Any) -> Any:
        received.append(arguments)
        return returned

    process = build(type("Mine", (Right,), {"receive": receive})).processes["a"]
    call(process, "receive", None, "b->a", 1)
    assert received == [(None, "b->a", 1)]


def test_a_simulated_handler_that_returns_a_coroutine_fails_by_name() -> None:
    system = build(type("Mine", (Right,), {"start": lambda self, ctx: coroutine_function()}))
    with pytest.raises(UserCodeFailed, match=r"Mine.start returned a coroutine of coroutine_function"):
        World(system, 1).run(1)


def test_capture_and_declarations_that_return_a_coroutine_fail_by_name() -> None:
    kind = type("Mine", (Right,), {name: lambda self: coroutine_function() for name in ("capture", "active")})
    with pytest.raises(UsageError, match=r"capture\(\) of process a returned a coroutine of coroutine_function"):
        encode_captured("a", kind().capture())
    with pytest.raises(UsageError, match=r"active\(\) of process 'a' returned a coroutine of coroutine_function"):
        declare("a", kind(), ())


def test_a_receive_that_an_inherited_receive_many_hides_is_refused() -> None:
    class Changed(AtOnce):
        def receive(self, ctx: Any, channel: str, message: Any) -> None:
            pass

    line = Changed.receive.__code__.co_firstlineno
    assert refusal(Changed) == (
        f"process 'a': Changed.receive (tests/{HERE}:{line}) would not be called, because the class inherits "
        "receive_many(); override that instead"
    )

    class Both(Changed):
        def receive_many(self, ctx: Any, channel: str, messages: list[Any]) -> None:
            super().receive_many(ctx, channel, messages)

    for kind in (AtOnce, Both):
        build(kind)
        Detecting(kind())
    assert takes_batches(AtOnce())
    assert takes_batches(Detecting(AtOnce()))
    assert not takes_batches(Right())
    assert not takes_batches(Detecting(Right()))


def test_a_receive_many_that_cannot_be_called_is_refused() -> None:
    class Many(Right):
        def receive_many(self, ctx: Any, messages: list[Any]) -> None:  # type: ignore[override]
            pass

    assert "Strobe calls receive_many(ctx, channel, messages)" in refusal(Many)

    class Later(Right):
        async def receive_many(self, ctx: Any, channel: str, messages: list[Any]) -> None:  # type: ignore[override]
            pass

    assert "Later.receive_many is async" in refusal(Later)


def test_receive_many_hands_on_to_receive_by_default() -> None:
    received = []

    class One(Right):
        def receive(self, ctx: Any, channel: str, message: Any) -> None:
            received.append((channel, message))

    One().receive_many(None, "a->b", [1, 2])  # type: ignore[arg-type]
    assert received == [("a->b", 1), ("a->b", 2)]
