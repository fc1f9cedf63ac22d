"""The API for users: processes, channels and the system they form. The same class runs in the simulator and live."""

import random
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import msgspec

from strobe.declarations import Waits, message_rules
from strobe.errors import UsageError
from strobe.handlers import (
    CONSERVED,
    DECLARING,
    PROCESS,
    SINK,
    SINK_PROPERTIES,
    SOURCE,
    SOURCE_PROPERTIES,
    check_finished,
    check_function,
    check_methods,
    check_properties,
    location,
)
from strobe.invariants import DeclaredInvariant, GlobalState, declared_invariants
from strobe.known_fields import require_known
from strobe.message_types import MessageTypes
from strobe.migrations import refuse_migrations
from strobe.names import check_name
from strobe.outside import Sink, Source

__all__ = ["Channel", "Context", "Process", "Random", "System", "Waits"]

State = Any
"""A msgspec struct, opaque bytes or a `KeyedState`; or any other value that msgspec can encode, except None."""


class Random(random.Random):
    """A random generator whose whole state is one 64-bit integer, so that it can be part of every snapshot.

    The algorithm is SplitMix64 (Steele, Lea and Flood, 2014). Seeded with a string, it gives the same numbers on every
    machine.
    """

    _MASK = (1 << 64) - 1

    def __init__(self, seed: str | int = 0) -> None:
        self.state = 0
        super().__init__(seed)

    def seed(self, a: Any = 0, version: int = 2) -> None:
        # random.Random hashes strings with SHA-512, which is the same everywhere, unlike hash().
        self.state = a & self._MASK if isinstance(a, int) else random.Random(a).getrandbits(64)

    def random(self) -> float:
        return self.getrandbits(53) / 9007199254740992.0

    def getrandbits(self, k: int, /) -> int:
        if k <= 64:
            return self._next() >> (64 - k)
        words = (k + 63) // 64
        value = 0
        for _ in range(words):
            value = value << 64 | self._next()
        return value >> (words * 64 - k)

    def gauss(self, mu: float = 0.0, sigma: float = 1.0) -> float:
        # The inherited method saves a second number for the next call, which would be state outside of the integer.
        return self.normalvariate(mu, sigma)

    def _next(self) -> int:
        mask = self._MASK
        self.state = state = (self.state + 0x9E3779B97F4A7C15) & mask
        state = ((state ^ (state >> 30)) * 0xBF58476D1CE4E5B9) & mask
        state = ((state ^ (state >> 27)) * 0x94D049BB133111EB) & mask
        return state ^ (state >> 31)

    def getstate(self) -> Any:
        return self.state

    def setstate(self, state: Any) -> None:
        self.state = state


class Context(ABC):
    """The interface of a process to its environment. All nondeterminism comes from here, so that a run can be replayed.

    `inputs` and `outputs` are the ids of the process's channels. The state of `random` is part of every snapshot.
    """

    name: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    random: random.Random

    @abstractmethod
    def send(self, channel: str, message: Any) -> None:
        """Send `message` on `channel`. The caller may change it afterwards."""

    def send_many(self, channel: str, messages: Iterable[Any]) -> None:
        """Send all `messages` on `channel`, in order: the same as `send` for each, but faster.

        If one of them cannot be sent, the error names it, and none of them is sent.
        """
        for message in messages:  # of a context in a user's test; the hosts have their own
            self.send(channel, message)

    @abstractmethod
    def set_timer(self, name: str, after_s: float) -> None:
        """Call the process's `timer` with this name after `after_s` seconds. It replaces a pending timer of
        this name.
        """

    @abstractmethod
    def cancel_timer(self, name: str) -> None:
        """Cancel the timer `name`, if it is pending."""

    @abstractmethod
    def now(self) -> float:
        """Return the time in seconds. It does not change during an event."""

    @abstractmethod
    def emit(self, record: Any) -> None:
        """Write `record` to the sink of this process. A live process that emits must have one."""

    @abstractmethod
    def snapshot(self) -> str:
        """Initiate a snapshot at this process, after the current event, and return its id.

        Under Lai-Yang the sequencer assigns the id later: then the name of the request is returned.
        """


class Process:
    """A process: its state, and handlers that run one at a time, to completion.

    A rollback restores what `capture` returned, and nothing else: module variables keep their values. Before the first
    snapshot, a rollback goes back to a copy of the process that was made before it ran.

    Set `must_stay` to a reason if the process may not leave the system. A request to leave is refused with that reason.
    """

    must_stay: str = ""

    def start(self, ctx: Context) -> None:
        """Called once, before any other handler; not called after a restore."""

    def receive(self, ctx: Context, channel: str, message: Any) -> None:
        """Handle one message that came on `channel`, or one record of the source of that name."""
        raise NotImplementedError(f"{type(self).__name__} got a message on {channel} but has no receive()")

    def receive_many(self, ctx: Context, channel: str, messages: list[Any]) -> None:
        """Handle the messages of a frame at once. A process that overrides this needs no `receive`: it is not called.

        One call is one event: no cut falls inside it, and a snapshot that it requests comes after all of `messages`.
        How many messages a frame has depends on timing. A record of a source comes as a list of one.
        """
        for message in messages:
            self.receive(ctx, channel, message)

    def timer(self, ctx: Context, name: str) -> None:
        """Called when the timer `name` fires."""

    def leave(self, ctx: Context) -> None:
        """Called once, last: no more messages will come. Send on what this process still holds."""

    def capture(self) -> State:
        """Return the whole state: a msgspec struct, bytes, or a `KeyedState`.

        A struct is encoded at the cut, while the process waits: good for small state. A `KeyedState` is returned as it
        is, not copied; it is frozen at once and written while the process continues (E4). Other values that msgspec can
        encode come back as plain ones, such as dicts of lists and numbers. None is not a state: it aborts the snapshot.
        """
        raise NotImplementedError(f"{type(self).__name__} must have capture(), which returns its state")

    def restore(self, state: State) -> None:
        """Restore the state that `capture` returned: an equal struct or `KeyedState`, newly made, or the same bytes."""
        raise NotImplementedError(f"{type(self).__name__} must have restore(), which takes back its state")

    def waits_for(self) -> Waits | None:
        """Return what this process waits for, if anything. While it waits it grants nothing, except on request.

        This method and the next two are called at every cut, for the stable predicates (G2:
        `strobe.causality.predicates`).
        """
        return None

    def references(self) -> Iterable[str] | Mapping[str, Iterable[str]]:
        """Return the names of the objects that this process refers to.

        If it keeps objects that refer to others, return a mapping from the name of each to the names it refers to. The
        references of the process itself are under "". An empty mapping declares nothing: such a process cannot become
        garbage.
        """
        return {}

    def active(self) -> bool:
        """Return whether this process may act without receiving anything, other than by a timer."""
        return True


class Channel(msgspec.Struct, frozen=True):
    """A directed channel between two processes. Its default id is `source->target`; parallel channels need other ids.

    `kind` is "fifo" or "unordered". `hash` is the hash of the proof: "xxh3", or "blake3" to detect forgery as well
    (P1). By default it is the system's.
    """

    source: str
    target: str
    kind: str = "fifo"
    id: str = ""
    hash: str = ""

    def __post_init__(self) -> None:
        if not self.id:
            msgspec.structs.force_setattr(self, "id", f"{self.source}->{self.target}")


def reverse_channel(channel: str) -> str:
    """Return the default id of the channel in the other direction: `b->a` for `a->b`."""
    source, _, target = channel.partition("->")
    return f"{target}->{source}"


class System:
    """Processes, channels, message types and a protocol.

    `conserved(states, messages)` is an optional function of all process states and all messages in flight. Its value
    must never change, for example the total amount of money. `invariants` are what must hold at every moment: functions
    `holds(snapshot)` of a `GlobalState`, which return True, or False or a text that explains; or conditions such as
    "a.balance >= 0" (docs/expressions.md). Both are checked on every snapshot, in the simulator and live (E12).

    `sources` and `sinks` connect live processes to the outside (R2). A record of a source is received like a message,
    under the source's name instead of a channel. `hash` applies to every channel without its own.

    Names of processes, channels, sources and sinks have 1 to 200 bytes, are printable, have no slash, and do not begin
    with a dot. Single spaces between words are allowed (`strobe.names`).
    """

    def __init__(
        self,
        processes: Mapping[str, Process],
        channels: Sequence[Channel],
        messages: Sequence[type] = (),
        protocol: str = "chandy-lamport",
        conserved: Callable[[Mapping[str, Any], Sequence[Any]], Any] | None = None,
        sources: Mapping[str, Source] | None = None,
        sinks: Mapping[str, Sink] | None = None,
        hash: str = "xxh3",  # noqa: A002
        invariants: Sequence[Callable[[GlobalState], bool | str] | str] = (),
    ) -> None:
        _check_arguments(processes, channels, messages)
        self.processes = dict(processes)
        self.channels = tuple(channels)
        self.messages = tuple(messages)
        self.protocol = protocol
        self.conserved = conserved
        self.hash = hash
        self.sources = dict(sources or {})
        self.sinks = dict(sinks or {})
        self._check_names()
        for name, process in self.processes.items():
            check_process(f"process {name!r}", process)
        if conserved is not None:
            check_function(f"`conserved` ({_name_of(conserved)})", conserved, CONSERVED)
        self.invariants: tuple[DeclaredInvariant, ...] = declared_invariants(
            invariants, self.processes, [channel.id for channel in self.channels]
        )
        self.message_types = MessageTypes(self.messages)
        self.decoder = self.message_types.decoder
        self.message_rules = message_rules(self.messages)
        self._check_outside()

    def conserved_value(self, states: Mapping[str, Any], messages: Sequence[Any]) -> Any:
        """Return the value of `conserved` for all states and all messages in flight."""
        assert self.conserved is not None, "the caller has looked"
        value = self.conserved(states, messages)
        check_finished("the function `conserved` of the system", value)
        if value is None:
            raise UsageError("`conserved` returned None; return the value that must not change")
        return value

    def initial_state(self, states: Mapping[str, Any]) -> GlobalState:
        """Return the global state before anything has run: these states, and nothing in flight."""
        nothing = dict.fromkeys((channel.id for channel in self.channels), 0)
        in_flight: dict[str, list[Any]] = {channel.id: [] for channel in self.channels}
        return GlobalState(dict(states), in_flight, dict.fromkeys(states, 0), nothing, dict(nothing))

    def decode_recorded(self, body: bytes | memoryview) -> list[Any]:
        """Return the messages in the body of a frame from a snapshot.

        Unlike `decoder`, this also rejects a field that the message type does not have: without it, the restored
        message would differ from the recorded one (E9).
        """
        messages = self.decoder.decode(body)
        require_known(body, self.decoder.type)
        return messages

    def _check_names(self) -> None:
        """Raise UsageError if a name is not valid: names appear in ids, on terminals and in file names."""
        for name in self.processes:
            check_name("process", name)
        for channel in self.channels:
            check_name("channel", channel.id)
        for name in self.sources:
            check_name("source", name)
        for name in self.sinks:
            check_name("sink", name)

    def _check_outside(self) -> None:
        """Raise UsageError if a source or sink has the wrong type, or belongs to an unknown process."""
        channels = {channel.id for channel in self.channels}
        for name, source in self.sources.items():
            self._check_end(f"source {name!r}", source, Source)
            check_methods(f"source {name!r}", source, SOURCE)
            check_properties(f"source {name!r}", source, SOURCE_PROPERTIES)
            if name in channels:
                raise UsageError(f"{name!r} is both a source and a channel; rename the source")
        emitters: dict[str, str] = {}
        for name, sink in self.sinks.items():
            self._check_end(f"sink {name!r}", sink, Sink)
            check_methods(f"sink {name!r}", sink, SINK)
            check_properties(f"sink {name!r}", sink, SINK_PROPERTIES)
            if sink.process in emitters:
                first = emitters[sink.process]
                raise UsageError(f"process {sink.process!r} has the sinks {first!r} and {name!r}; it can have one")
            emitters[sink.process] = name

    def _check_end(self, what: str, end: Source | Sink, kind: type) -> None:
        if not isinstance(end, kind):
            raise UsageError(
                f"{what} is a {type(end).__name__}; use one of strobe.runtime, or subclass {kind.__name__}"
            )
        if end.process not in self.processes:
            known = ", ".join(self.processes)
            raise UsageError(f"{what} belongs to the process {end.process!r}, which does not exist; there are: {known}")


def _check_arguments(processes: Any, channels: Any, messages: Any) -> None:
    """Raise UsageError if an argument of `System`, or a member of it, is of the wrong kind."""
    if not isinstance(processes, Mapping):
        given = type(processes).__name__
        raise UsageError(f'`processes` is a {given}; give a dict of instances by name: {{"a": Branch()}}')
    for name, process in processes.items():
        if isinstance(process, type):
            raise UsageError(
                f"process {name!r} is the class {process.__name__}; give an instance: {process.__name__}()"
            )
        if not isinstance(process, Process):
            raise UsageError(f"process {name!r} is a {type(process).__name__}; subclass strobe.Process")
    for channel in _members("channels", channels, "Channel('a', 'b')"):
        if not isinstance(channel, Channel):
            written = f"Channel{channel!r}" if isinstance(channel, tuple) and len(channel) > 1 else "Channel('a', 'b')"
            raise UsageError(f"the channel {channel!r} is a {type(channel).__name__}; write {written}")
    for kind in _members("messages", messages, "Transfer"):
        if isinstance(kind, (str, bytes, int, float, msgspec.Struct)):
            raise UsageError(f"the message type {kind!r} is a value; give its type: {type(kind).__name__}")
        refuse_migrations(kind)


def _members(argument: str, given: Any, example: str) -> Iterable[Any]:
    if isinstance(given, (str, Mapping)) or not isinstance(given, Iterable):
        shown = given.__name__ if isinstance(given, type) else type(given).__name__
        raise UsageError(f"`{argument}` is {shown}, not a list; write {argument}=[{example}]")
    return given


def check_process(what: str, process: Process) -> None:
    """Raise UsageError if a handler of `process` cannot be called (E13); `what` describes the process to people."""
    check_methods(what, process, PROCESS)
    check_methods(what, process, DECLARING)
    if takes_batches(process):
        _check_receive_is_called(what, process)


def is_default(process: Process, method: str) -> bool:
    """Return whether `process` does not override this method."""
    return getattr(getattr(process, method), "__func__", None) is getattr(Process, method)


def takes_batches(process: Process) -> bool:
    """Return whether `process` receives all messages of a frame in one event, by `receive_many`."""
    return not is_default(process, "receive_many")


def _check_receive_is_called(what: str, process: Process) -> None:
    """Raise UsageError if a class overrides `receive` and inherits a `receive_many`: its `receive` is not called."""
    found: Iterable[Any] = (process, *type(process).__mro__)
    owner = next(one for one in found if {"receive", "receive_many"} & vars(one).keys())
    if "receive_many" not in vars(owner):
        where = f"{owner.__name__}.receive{location(owner.receive)}"
        raise UsageError(
            f"{what}: {where} would not be called, because the class inherits receive_many(); override that instead"
        )


def _name_of(function: Any) -> str:
    return getattr(function, "__qualname__", None) or type(function).__name__
