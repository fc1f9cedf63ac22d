"""Reads `system.toml`: one description of a system whose processes run on several hosts.

    store = "./snapshots"
    protocol = "chandy-lamport"
    messages = ["bank:Transfer"]         # msgspec structs; without them, messages are plain values
    conserved = "bank:total"             # what never changes, checked on every snapshot
    invariants = ["bank:no_overdraft",   # functions of a snapshot, or conditions on it; checked on every snapshot
                  "a.balance >= 0"]
    hash = "xxh3"                        # or "blake3": the hash of the channels' frames, for proofs
    [coordinator]                        # see `CoordinatorSettings`
    listen = "127.0.0.1:7400"
    interval_s = 1.0
    [node]                               # see `NodeSettings`
    trace = "off"
    [retention]                          # see `RetentionSettings`
    keep_last = 100
    [process.a]
    class = "bank:Branch"                # without it, the process is a program with its own loop (`Node`);
                                         # then state = "bank:Account" is the type it captures, for verification
    args = {balance = 200}
    listen = "127.0.0.1:7401"
    host = "left"                        # `strobe up` runs processes with the same host in one program
    [[channel]]
    from = "a"
    to = "b"
    hash = "blake3"                      # of this channel
    [source.orders]                      # kinds: file, ingress
    kind = "file"
    path = "orders.jsonl"
    process = "a"
    [sink.audit]
    path = "audit.jsonl"
    process = "a"

Modules are searched beside the file first.
"""

import re
import tomllib
from importlib import import_module
from pathlib import Path
from typing import Any, Literal

import msgspec

from strobe.errors import UsageError
from strobe.outside import Sink, Source
from strobe.process import Channel, Process, System
from strobe.runtime.addresses import parse_address
from strobe.runtime.connectors.file_sink import FileSink
from strobe.runtime.connectors.file_source import FileSource
from strobe.runtime.connectors.ingress_log import IngressLog
from strobe.runtime.settings import CoordinatorSettings, NodeSettings, RetentionSettings
from strobe.user_code import loading

_REFERENCE = re.compile(r"[\w.]+:\w+")
"""A reference `module:name`, which is not a condition: the language has no colon."""


class ProcessTable(msgspec.Struct, forbid_unknown_fields=True):
    """`[process.NAME]`."""

    class_: str | None = msgspec.field(name="class", default=None)
    args: dict[str, Any] = {}
    state: str | None = None
    listen: str = "127.0.0.1:0"
    host: str = ""


class ChannelTable(msgspec.Struct, forbid_unknown_fields=True):
    """`[[channel]]`."""

    source: str = msgspec.field(name="from")
    target: str = msgspec.field(name="to")
    kind: str = "fifo"
    id: str = ""
    hash: str = ""


class SourceTable(msgspec.Struct, forbid_unknown_fields=True):
    """`[source.NAME]`; `type` is the `module:name` that records are decoded as."""

    path: str
    process: str
    kind: Literal["file", "ingress"] = "file"
    type: str | None = None
    malformed: str = "stop"


class SinkTable(msgspec.Struct, forbid_unknown_fields=True):
    """`[sink.NAME]`."""

    path: str
    process: str


class SystemFile(msgspec.Struct, forbid_unknown_fields=True):
    """The whole file."""

    process: dict[str, ProcessTable]
    channel: list[ChannelTable] = []
    protocol: str = "chandy-lamport"
    messages: list[str] = []
    conserved: str | None = None
    invariants: list[str] = []
    hash: str = "xxh3"
    store: str | None = None
    coordinator: CoordinatorSettings = CoordinatorSettings()
    node: NodeSettings = NodeSettings()
    retention: RetentionSettings = RetentionSettings()
    source: dict[str, SourceTable] = {}
    sink: dict[str, SinkTable] = {}


class ProgramWithOwnLoop(Process):
    """Stands for a process that is a program with its own loop, joined by `Node.connect`, not a user's class.

    When its snapshots are inspected, it holds the restored state; `kind` is the type that the program captures.
    """

    def __init__(self, name: str, kind: Any = None) -> None:
        self._name = name
        self._state = kind and _example(kind)

    def capture(self) -> Any:
        if self._state is None:
            raise NotImplementedError(
                f"[process.{self._name}] is a program with its own loop; name the type it captures: state = module:Type"
            )
        return self._state

    def restore(self, state: Any) -> None:
        self._state = state


def _example(kind: Any) -> Any:
    try:
        return kind()
    except TypeError:  # it has fields without defaults; only its type matters
        return kind.__new__(kind)


def read_system_file(path: Path) -> System:
    """Return the system that `path` describes, with newly made processes."""
    file = parse_system_file(path)
    processes = {name: _make(path, name, table) for name, table in file.process.items()}
    channels = [Channel(table.source, table.target, table.kind, table.id, table.hash) for table in file.channel]
    messages = [_find(path, "messages", reference) for reference in file.messages]
    conserved = _find(path, "conserved", file.conserved) if file.conserved else None
    invariants = [_find(path, "invariants", one) if _REFERENCE.fullmatch(one) else one for one in file.invariants]
    sources = {name: _source(path, name, table) for name, table in file.source.items()}
    sinks: dict[str, Sink] = {
        name: FileSink(path.parent / table.path, process=table.process) for name, table in file.sink.items()
    }
    try:
        return System(processes, channels, messages, file.protocol, conserved, sources, sinks, file.hash, invariants)
    except UsageError as error:
        raise UsageError(f"{path}: {error}") from error


def parse_system_file(path: Path) -> SystemFile:
    """Return the contents of `path`, without running any user code."""
    try:
        file = msgspec.convert(tomllib.loads(path.read_text("utf-8")), SystemFile)
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}; give the path of a system.toml") from error
    except msgspec.ValidationError as error:
        hint = "a process is a table [process.name] with its class, a channel is a [[channel]] with from and to"
        raise UsageError(f"{path} does not describe a system: {error}; {hint}") from error
    except ValueError as error:
        raise UsageError(f"{path} is not TOML: {error}; correct the file, or name another") from error
    try:
        file.coordinator.policy()
        file.node.check()
        _check_addresses(file)
    except UsageError as error:
        raise UsageError(f"{path}: {error}") from error
    return file


def _check_addresses(file: SystemFile) -> None:
    """Raise UsageError for an invalid address now, not later in the node or coordinator that listens there."""
    parse_address(file.coordinator.listen, "[coordinator]: listen")
    parse_address(file.coordinator.api, "[coordinator]: api")
    for name, table in file.process.items():
        parse_address(table.listen, f"[process.{name}]: listen")


def _make(path: Path, name: str, table: ProcessTable) -> Process:
    place = f"[process.{name}]"
    if table.class_ is None:
        return ProgramWithOwnLoop(name, _find(path, place, table.state) if table.state else None)
    make = _find(path, place, table.class_)
    if isinstance(make, type) and not issubclass(make, Process):
        raise _no_process(path, place, table.class_)  # whatever its arguments are
    with loading(f"{path}, {place}: {table.class_} cannot be made with the arguments {table.args}"):
        process = make(**table.args)
    if not isinstance(process, Process):
        raise _no_process(path, place, table.class_)
    return process


def _no_process(path: Path, place: str, reference: str) -> UsageError:
    return UsageError(f"{path}, {place}: {reference} is not a strobe.Process; name a class that is")


def _source(path: Path, name: str, table: SourceTable) -> Source:
    kind = _find(path, f"[source.{name}]", table.type) if table.type else Any
    place = path.parent / table.path
    if table.kind == "ingress":
        return IngressLog(place, table.process, kind)
    return FileSource(place, table.process, kind, table.malformed)


def _find(path: Path, place: str, reference: str) -> Any:
    """Return the object named by `module:name`."""
    module_name, colon, name = reference.partition(":")
    if not (module_name and colon and name):
        raise UsageError(f"{path}, {place}: {reference!r} names nothing; write module:name")
    with loading(f"{path}, {place}: the module {module_name!r} cannot be imported"):
        module = import_module(module_name)
    if not hasattr(module, name):
        raise UsageError(f"{path}, {place}: the module {module_name!r} has no {name!r}; correct the name")
    return getattr(module, name)
