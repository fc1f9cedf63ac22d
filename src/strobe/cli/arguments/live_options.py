"""Loads a live system named on the command line: its processes and settings."""

import tomllib
from pathlib import Path
from typing import Annotated, NamedTuple

import msgspec
import typer

from strobe.cli.arguments.systems import SystemSource
from strobe.errors import UsageError
from strobe.process import System
from strobe.runtime.connectors.system_file import parse_system_file
from strobe.runtime.settings import CoordinatorSettings, NodeSettings, RetentionSettings, check_together

STORE = "./snapshots"

SystemArgument = Annotated[
    str, typer.Argument(metavar="SYSTEM", help="The system: file.py:name, module:name or system.toml.")
]


class LiveSystem(NamedTuple):
    """A system with its settings, from system.toml or the defaults."""

    system: System
    coordinator: CoordinatorSettings
    node: NodeSettings
    retention: RetentionSettings
    store: str
    listens: dict[str, str]
    # The host of each process that has one: those with the same host share a program.
    hosts: dict[str, str]


def load_live(source: SystemSource) -> LiveSystem:
    """Return the system that `source` names, checked."""
    system = source.load()
    if not source.spec.endswith(".toml"):
        return LiveSystem(system, CoordinatorSettings(), NodeSettings(), RetentionSettings(), STORE, {}, {})
    path = Path(source.spec)
    file = parse_system_file(path)
    # Paths in the file are relative to the file.
    store = str(path.parent / file.store) if file.store and "://" not in file.store else (file.store or STORE)
    listens = {name: table.listen for name, table in file.process.items()}
    hosts = {name: table.host for name, table in file.process.items() if table.host}
    return LiveSystem(system, file.coordinator, file.node, file.retention, store, listens, hosts)


def with_settings(live: LiveSystem, settings: list[str]) -> LiveSystem:
    """Return `live` with settings given as `table.key=value`; the value is TOML, but words need no quotes."""
    for setting in settings:
        name, _, text = setting.partition("=")
        table, _, key = name.partition(".")
        if table not in ("coordinator", "node", "retention") or not key or not text:
            raise UsageError(f"--set {setting}: write coordinator.KEY=VALUE, node.KEY=VALUE or retention.KEY=VALUE")
        before = getattr(live, table)
        try:
            changed = {**msgspec.structs.asdict(before), key: _value(text)}
            live = live._replace(**{table: msgspec.convert(changed, type(before))})
        except msgspec.ValidationError as error:
            known = ", ".join(before.__struct_fields__)
            raise UsageError(f"--set {setting}: {error}; the settings of [{table}] are: {known}") from error
    return live


def check_settings(live: LiveSystem) -> None:
    """Raise UsageError if a setting is invalid, or contradicts another."""
    live.coordinator.policy()
    live.node.check()
    live.retention.check()
    check_together(live.coordinator, live.node)


def _value(text: str) -> object:
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text
