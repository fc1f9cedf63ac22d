"""What people and programs see: text and tables on stdout, errors and progress on stderr, or one JSON document."""

import shutil
import sys
import textwrap
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, redirect_stdout
from types import TracebackType
from typing import Any, NamedTuple, Self, TextIO

WIDTH_ELSEWHERE = 100
"""How wide lines are where they do not go to a terminal."""
_PROGRESS_EVERY_S = 0.1
_TEXT_WIDTH_MIN = 16
_COMMAND = "    "
_CLEAR_LINE = "\r\x1b[K"


def say(text: str = "") -> None:
    """Print a line of the result."""
    sys.stdout.write(f"{text}\n")


def note(text: str) -> None:
    """Print a line beside the result."""
    sys.stderr.write(f"{text}\n")


def say_wrapped(text: str, indent: str = "  ") -> None:
    """Print one line of the result; on a terminal it is broken between words, and goes on behind `indent`."""
    say(_wrap(text, indent, sys.stdout) if sys.stdout.isatty() else text)


def print_json(document: Any) -> None:
    """Print the one document of `--json`."""
    import msgspec

    sys.stdout.write(msgspec.json.format(msgspec.json.encode(document, enc_hook=repr), indent=2).decode() + "\n")


@contextmanager
def beside_document(json: bool) -> Iterator[None]:
    """With --json, send what is printed meanwhile to stderr: stdout is for the one document."""
    if json:
        with redirect_stdout(sys.stderr):
            yield
    else:
        yield


def print_error(problem: str, label: str = "error: ") -> None:
    """Print what went wrong as a paragraph on stderr. Lines stay lines, and commands (indented by four) stay whole."""
    lines = f"{label}{problem}".splitlines()
    note("\n".join(line if line.startswith(_COMMAND) else _wrap(line, "  ", sys.stderr) for line in lines))


def _wrap(line: str, indent: str, stream: TextIO) -> str:
    indent += line[: len(line) - len(line.lstrip())]
    # Names, paths and commands to paste stay whole.
    return textwrap.fill(line, width(stream), subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)


def width(stream: TextIO | None = None) -> int:
    """Return how many columns there are to fill on stdout or `stream`: those of the terminal, elsewhere always 100."""
    terminal = (stream or sys.stdout).isatty()
    return shutil.get_terminal_size((WIDTH_ELSEWHERE, 40)).columns if terminal else WIDTH_ELSEWHERE


def count(number: int, what: str, plural: str | None = None) -> str:
    """Return `1 snapshot`, `2 snapshots`."""
    return f"{number:,} {what if number == 1 else plural or what + 's'}"


def size_text(size: int) -> str:
    """Return a number of bytes as people read it: `812 B`, `1.2 MB`."""
    units = ("B", "kB", "MB", "GB", "TB")
    power = min((len(str(size)) - 1) // 3, len(units) - 1)
    return f"{size / 1000**power:,.{1 if power else 0}f} {units[power]}"


class Column(NamedTuple):
    """A column of a table: numbers stand to the right and stay whole, as do names; other text wraps."""

    title: str
    number: bool = False
    name: bool = False


_STYLES = {"holds": "green", "violated": "bold red", "corrupt": "bold red", "undecided": "yellow", "aborted": "yellow"}


def print_table(columns: Sequence[Column], rows: Sequence[Sequence[str]]) -> None:
    """Print a table that fits the width; verdicts are coloured on a terminal."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    for column in columns:
        table.add_column(
            column.title, justify="right" if column.number else "left", no_wrap=column.number or column.name
        )
    for row in rows:
        table.add_row(*(Text(cell, style=_STYLES.get(cell.split(" ")[0], ""), overflow="fold") for cell in row))
    console = Console(file=sys.stdout, width=max(width(), _width_min(columns, rows)), highlight=False)
    with console.capture() as printed:
        console.print(table)
    for line in printed.get().splitlines():
        say(line.rstrip())


def _width_min(columns: Sequence[Column], rows: Sequence[Sequence[str]]) -> int:
    """Return what the table needs: a name that is cut off cannot be pasted. On a narrow terminal, lines run over."""
    total = 2 * len(columns)
    for place, column in enumerate(columns):
        cells = [column.title, *(row[place] for row in rows)]
        total += max(map(len, cells)) if column.number or column.name else min(max(map(len, cells)), _TEXT_WIDTH_MIN)
    return total


class Progress:
    """One line on stderr that says how far a command is; nothing where stderr is not a terminal."""

    def __init__(self) -> None:
        self._shown = sys.stderr.isatty()
        self._last_s = 0.0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._shown:
            sys.stderr.write(_CLEAR_LINE)
            sys.stderr.flush()

    @contextmanager
    def ticking(self, text: str) -> Iterator[None]:
        """Show `text` and the seconds that pass, while something runs that does not say how far it is."""
        done = threading.Event()
        started_s = time.monotonic()

        def tick() -> None:
            while self._shown and not done.wait(_PROGRESS_EVERY_S):
                self.show(f"{text} ({time.monotonic() - started_s:.0f} s)")

        thread = threading.Thread(target=tick, daemon=True)
        thread.start()
        try:
            yield
        finally:
            done.set()
            thread.join()

    def note(self, text: str) -> None:
        """Print a line that stays, also where stderr is not a terminal."""
        note(f"{_CLEAR_LINE if self._shown else ''}{text}")

    def show(self, text: str, *, now: bool = False) -> None:
        """Replace the line, at most ten times a second unless `now`."""
        time_s = time.monotonic()
        if self._shown and (now or time_s - self._last_s >= _PROGRESS_EVERY_S):
            self._last_s = time_s
            sys.stderr.write(f"{_CLEAR_LINE}{text[: width(sys.stderr) - 1]}")
            sys.stderr.flush()
