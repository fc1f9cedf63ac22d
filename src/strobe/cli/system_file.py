"""Reads `system.toml`: a system whose processes run on several hosts, written down once for all of them.

    protocol = "chandy-lamport"
    messages = ["bank:Transfer"]         # msgspec structs; without them, messages are plain values
    conserved = "bank:total"             # what never changes, checked on every snapshot
    [process.a]
    class = "bank:Branch"
    args = {balance = 200}
    [[channel]]
    from = "a"
    to = "b"

What only live processes need (`store`, `[coordinator]`, `listen`) may stand in it, and is left alone here. Modules are
looked for beside the file first.
"""

import tomllib
from importlib import import_module
from pathlib import Path
from typing import Any

import msgspec

from strobe.cli.failures import loading
from strobe.errors import UsageError
from strobe.process import Channel, Process, System


class ProcessTable(msgspec.Struct, forbid_unknown_fields=True):
    """`[process.NAME]`."""

    class_: str = msgspec.field(name="class")
    args: dict[str, Any] = {}
    listen: str | None = None


class ChannelTable(msgspec.Struct, forbid_unknown_fields=True):
    """`[[channel]]`."""

    source: str = msgspec.field(name="from")
    target: str = msgspec.field(name="to")
    kind: str = "fifo"
    id: str = ""


class SystemFile(msgspec.Struct, forbid_unknown_fields=True):
    """The whole file."""

    process: dict[str, ProcessTable]
    channel: list[ChannelTable] = []
    protocol: str = "chandy-lamport"
    messages: list[str] = []
    conserved: str | None = None
    store: str | None = None
    coordinator: dict[str, Any] = {}


def read_system_file(path: Path) -> System:
    """Return the system that `path` describes, its processes newly made."""
    file = _parse(path)
    processes = {name: _make(path, name, table) for name, table in file.process.items()}
    channels = [Channel(table.source, table.target, table.kind, table.id) for table in file.channel]
    messages = [_find(path, "messages", reference) for reference in file.messages]
    conserved = _find(path, "conserved", file.conserved) if file.conserved else None
    try:
        return System(processes, channels, messages, file.protocol, conserved)
    except UsageError as error:
        raise UsageError(f"{path}: {error}") from error


def _parse(path: Path) -> SystemFile:
    try:
        return msgspec.convert(tomllib.loads(path.read_text("utf-8")), SystemFile)
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}; give the path of a system.toml") from error
    except msgspec.ValidationError as error:
        hint = "a process is a table [process.name] with its class, a channel is a [[channel]] with from and to"
        raise UsageError(f"{path} does not describe a system: {error}; {hint}") from error
    except ValueError as error:
        raise UsageError(f"{path} is not TOML: {error}; correct the file, or name another") from error


def _make(path: Path, name: str, table: ProcessTable) -> Process:
    place = f"[process.{name}]"
    make = _find(path, place, table.class_)
    with loading(f"{path}, {place}: {table.class_} cannot be made with the arguments {table.args}"):
        process = make(**table.args)
    if not isinstance(process, Process):
        raise UsageError(f"{path}, {place}: {table.class_} is not a strobe.Process; name a class that is")
    return process


def _find(path: Path, place: str, reference: str) -> Any:
    """Return what `module:name` stands for."""
    module_name, colon, name = reference.partition(":")
    if not (module_name and colon and name):
        raise UsageError(f"{path}, {place}: {reference!r} names nothing; write module:name")
    with loading(f"{path}, {place}: the module {module_name!r} cannot be imported"):
        module = import_module(module_name)
    if not hasattr(module, name):
        raise UsageError(f"{path}, {place}: the module {module_name!r} has no {name!r}; correct the name")
    return getattr(module, name)
