"""The list of commands. Each is a module of this package, imported only when it is used.

A command module has an `app`, made by `new_app`, with one or more commands. So `strobe --help` only costs the import of
typer, whatever the commands need.
"""

from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import typer
from typer.core import CompletionItem, TyperGroup  # type: ignore[attr-defined]
from typer.main import get_command

HELP_WIDTH_MAX = 100


class Entry(NamedTuple):
    """The module of a command, and its purpose in one line."""

    module: str
    purpose: str


COMMANDS = {
    "demo": Entry("strobe.cli.demo.demo", "Run a bank of real processes, kill one, verify its snapshots with Spark."),
    "init": Entry("strobe.cli.project.init", "Write a project that runs: a system, its tests and its settings."),
    "doctor": Entry("strobe.cli.project.doctor", "Check what Strobe needs of this machine, and say what to do."),
    "up": Entry("strobe.cli.live.up", "Run a whole system on this machine, with a snapshot every second."),
    "coordinator": Entry("strobe.cli.live.coordinator", "Run the coordinator of a system."),
    "node": Entry("strobe.cli.live.node", "Run one process of a system."),
    "restore": Entry("strobe.cli.live.restore", "Roll a running system back to a snapshot."),
    "restart": Entry(
        "strobe.cli.live.restart", "Restart running processes without a rollback, to deploy a new program."
    ),
    "leave": Entry("strobe.cli.live.leave", "Let a process leave a running system."),
    "simulate": Entry(
        "strobe.cli.simulation.simulate", "Run your processes in a simulator with faults, with every checker on."
    ),
    "explore": Entry("strobe.cli.simulation.explore", "Run the protocols through every interleaving of small systems."),
    "explain": Entry(
        "strobe.cli.simulation.explain", "Show the algorithm step by step, as the real protocol code runs it."
    ),
    "matrix": Entry("strobe.cli.simulation.matrix", "Show which checker catches which broken protocol."),
    "snapshot": Entry(
        "strobe.cli.snapshots.snapshot", "List, show, verify, compare and remove the snapshots of a store."
    ),
    "store": Entry(
        "strobe.cli.snapshots.store_repair", "Check the log of a store, and fence off an entry that cannot be read."
    ),
    "pipeline": Entry("strobe.cli.pipeline", "Judge every snapshot on Spark as it commits."),
    "keys": Entry("strobe.cli.snapshots.keys", "Create the keys with which processes sign their part of a snapshot."),
    "trace": Entry(
        "strobe.cli.traces.trace", "Check a recorded run: do its events fit together, are its cuts consistent?"
    ),
}

JsonOption = Annotated[
    bool, typer.Option("--json", help="Print one JSON document on stdout; everything else goes to stderr.")
]
SNAPSHOT_NAME = "An id, its short form (1.7: epoch 1, snapshot 7), its beginning, or latest."
StoreOption = Annotated[
    str, typer.Option("--store", metavar="STORE", help="The store: a directory, or a URL such as s3://BUCKET/PREFIX.")
]
KeysOption = Annotated[
    Path | None, typer.Option(metavar="DIR", help="Directory of public keys: every process must have signed its part.")
]
ViewOption = Annotated[
    Path | None, typer.Option(metavar="FILE.json", help="With --keys: the view that the snapshots must have.")
]


def new_app(purpose: str | None = None, completion: bool = False) -> typer.Typer:
    """Return an app for a command module; with a `purpose`, a group of commands."""
    app = typer.Typer(add_completion=completion, rich_markup_mode=None, pretty_exceptions_enable=False, **_SETTINGS)
    if purpose is not None:
        app.callback(help=purpose)(_nothing)
    return app


class LazyGroup(TyperGroup):
    """A group that knows its commands by name, and imports a command when it runs."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        # For suggestions after a typo. The commands themselves come from `get_command`.
        self.commands = dict.fromkeys(self.list_commands(None))  # type: ignore[assignment]

    def list_commands(self, ctx: Any) -> list[str]:
        return [name for name, entry in COMMANDS.items() if find_spec(entry.module) is not None]

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        if cmd_name not in self.commands:
            return None
        return get_command(import_module(COMMANDS[cmd_name].module).app)

    def shell_complete(self, ctx: Any, incomplete: str) -> list[CompletionItem]:
        if incomplete.startswith("-"):
            return super().shell_complete(ctx, incomplete)
        matching = [name for name in self.commands if name.startswith(incomplete)]
        return [CompletionItem(name, help=COMMANDS[name].purpose) for name in matching]

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, COMMANDS[name].purpose) for name in self.commands])


_SETTINGS: dict[str, Any] = {
    "context_settings": {"help_option_names": ["--help", "-h"], "max_content_width": HELP_WIDTH_MAX}
}


def _nothing() -> None:
    """The callback of a group: typer then keeps a group even with only one command."""
