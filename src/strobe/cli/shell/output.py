"""The output of commands: text and tables on stdout, errors and progress on stderr, or one JSON document.

Everything that a command prints goes through `plain_text`: names and reasons from elsewhere reach a terminal without
control characters, and are never markup.
"""

import errno
import shlex
import shutil
import sys
import textwrap
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, redirect_stdout
from io import StringIO
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Self, TextIO
from weakref import WeakSet

from strobe.plain_text import json_of, plain, plain_lines

if TYPE_CHECKING:
    from rich.table import Table
    from rich.text import Text

WIDTH_ELSEWHERE = 100
"""Line width if the output is not a terminal."""
_PROGRESS_EVERY_S = 0.1
_TEXT_WIDTH_MIN = 16
_COMMAND = "    "
_CLEAR_LINE = "\r\x1b[K"
_LINES_LENGTH_MAX = 100_000
_DISK_FAILS = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)
_lost: WeakSet[TextIO] = WeakSet()


def print_line(text: str = "") -> None:
    """Print a line of the result."""
    _write(plain(text), sys.stdout)


def print_lines(text: str) -> None:
    """Print several lines of our own text."""
    _write(plain_lines(text), sys.stdout)


def note(text: str) -> None:
    """Print a line on stderr, beside the result."""
    _write(plain(text), sys.stderr)


def note_lines(text: str) -> None:
    """Print several lines on stderr, such as a traceback."""
    _write(plain_lines(text, _LINES_LENGTH_MAX), sys.stderr)


def print_wrapped(text: str, indent: str = "  ") -> None:
    """Print one line of the result; on a terminal it wraps between words, with `indent` on the following lines."""
    line = plain(text)
    _write(_wrap(line, indent, sys.stdout) if sys.stdout.isatty() else line, sys.stdout)


def print_json(document: Any) -> None:
    """Print the one document of `--json`."""
    import msgspec

    _write(msgspec.json.format(json_of(document, repr), indent=2), sys.stdout)


def program(name: str) -> str:
    """Return how to call the program `name` of this installation from the user's shell."""
    here = Path(sys.executable).parent / name
    found = shutil.which(name)
    if found is not None and Path(found).resolve() == here.resolve():
        return name
    return _from_here(here)


def python() -> str:
    """Return how to call the current interpreter."""
    return _from_here(Path(sys.executable))


def _from_here(path: Path) -> str:
    short = path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path
    return shlex.quote(str(short))


def _write(text: str, stream: TextIO, end: str = "\n") -> None:
    if ProgressLine.drawn_on is not None and stream.isatty():
        ProgressLine.clear()
    with _unless_disk_fails(stream):
        try:
            stream.write(f"{text}{end}")
        except UnicodeEncodeError:  # the locale's encoding lacks a character of the text
            known = stream.encoding or "ascii"
            stream.write(f"{text}{end}".encode(known, "backslashreplace").decode(known))


def flush(stream: TextIO) -> None:
    """Flush `stream`."""
    with _unless_disk_fails(stream):
        stream.flush()


def is_lost(stream: TextIO) -> bool:
    """Return whether some output to `stream` could not be written."""
    return stream in _lost


def mark_lost(stream: TextIO) -> None:
    """Record that some output to `stream` could not be written."""
    _lost.add(stream)


def is_disk_failure(error: OSError) -> bool:
    """Return whether the error means that the disk is full or broken."""
    return error.errno in _DISK_FAILS


@contextmanager
def _unless_disk_fails(stream: TextIO) -> Iterator[None]:
    """Ignore disk failures: a full disk under the output of `strobe up` must not end the system."""
    try:
        yield
    except OSError as error:
        if not is_disk_failure(error):
            raise
        mark_lost(stream)


@contextmanager
def beside_document(json: bool) -> Iterator[None]:
    """With --json, redirect other prints to stderr: stdout is for the one document."""
    if json:
        with redirect_stdout(sys.stderr):
            yield
    else:
        yield


def print_error(problem: str, label: str = "error: ") -> None:
    """Print an error as a paragraph on stderr. Line breaks are kept, and commands (indented by four) do not wrap."""
    lines = plain_lines(f"{label}{problem}").split("\n")
    shown = (line if line.startswith(_COMMAND) else _wrap(line, "  ", sys.stderr) for line in lines)
    _write("\n".join(shown), sys.stderr)


def _wrap(line: str, indent: str, stream: TextIO) -> str:
    indent += line[: len(line) - len(line.lstrip())]
    # Do not break names, paths and commands to paste.
    return textwrap.fill(line, width(stream), subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)


def width(stream: TextIO | None = None) -> int:
    """Return the number of columns of stdout or `stream`: the terminal's, or 100 if it is not a terminal."""
    terminal = (stream or sys.stdout).isatty()
    return shutil.get_terminal_size((WIDTH_ELSEWHERE, 40)).columns if terminal else WIDTH_ELSEWHERE


def count(number: int, what: str, plural: str | None = None) -> str:
    """Return `1 snapshot`, `2 snapshots`."""
    return f"{number:,} {what if number == 1 else plural or what + 's'}"


def size_text(size: int) -> str:
    """Return a number of bytes in readable form: `812 B`, `1.2 MB`."""
    units = ("B", "kB", "MB", "GB", "TB")
    power = min((len(str(size)) - 1) // 3, len(units) - 1)
    return f"{size / 1000**power:,.{1 if power else 0}f} {units[power]}"


class Column(NamedTuple):
    """A column of a table. Numbers are right-aligned; numbers and names do not wrap, other text does."""

    title: str
    number: bool = False
    name: bool = False


_STYLES = {"holds": "green", "violated": "bold red", "corrupt": "bold red", "undecided": "yellow", "aborted": "yellow"}


_ROWS_DRAWN_MAX = 1000

Cell = str | list[str]
"""Text, or several lines of it."""


def print_table(columns: Sequence[Column], rows: Sequence[Sequence[Cell]]) -> None:
    """Print a table that fits the width; verdicts are coloured on a terminal."""
    if len(rows) > _ROWS_DRAWN_MAX and all(column.number or column.name for column in columns):
        _print_long_table(columns, rows)
        return
    from rich.console import Console

    fitting = max(width(), _width_min(columns, rows))
    console = Console(file=StringIO(), force_terminal=sys.stdout.isatty(), width=fitting, highlight=False)
    with console.capture() as printed:
        console.print(table(columns, ([cell_of(cell) for cell in row] for row in rows)))
    for line in printed.get().splitlines():
        _write(line.rstrip(), sys.stdout)


def _print_long_table(columns: Sequence[Column], rows: Sequence[Sequence[Cell]]) -> None:
    """Print a table in which nothing wraps: like `print_table`, but without colours and a hundred times as fast."""
    lines = [[column.title for column in columns], *([_cell_text(cell) for cell in row] for row in rows)]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    for line in lines:
        padded = (
            cell.rjust(room) if column.number else cell.ljust(room)
            for cell, room, column in zip(line, widths, columns, strict=True)
        )
        _write("  ".join(padded).rstrip(), sys.stdout)


def table(columns: Sequence[Column], rows: Iterable[Sequence["Text"]]) -> "Table":
    """Return a table to be drawn, of cells made by `cell_of`."""
    from rich.table import Table

    made = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    for column in columns:
        made.add_column(
            column.title, justify="right" if column.number else "left", no_wrap=column.number or column.name
        )
    for row in rows:
        made.add_row(*row)
    return made


def cell_of(cell: Cell, style: str | None = None) -> "Text":
    """Return literal text to be drawn: brackets in a name are not markup. Verdicts have their own style."""
    from rich.text import Text

    text = _cell_text(cell)
    return Text(text, _STYLES.get(text.split(" ")[0], "") if style is None else style, overflow="fold")


def _cell_text(cell: Cell) -> str:
    return plain(cell) if isinstance(cell, str) else "\n".join(map(plain, cell))


def _width_min(columns: Sequence[Column], rows: Sequence[Sequence[Cell]]) -> int:
    """Return the minimum width of the table: names are never cut, so lines may overflow a narrow terminal."""
    total = 2 * len(columns)
    for place, column in enumerate(columns):
        cells = [column.title, *(_cell_text(row[place]) for row in rows)]
        total += max(map(len, cells)) if column.number or column.name else min(max(map(len, cells)), _TEXT_WIDTH_MIN)
    return total


class ProgressLine:
    """A progress line on stderr; nothing if stderr is not a terminal. Anything else that is printed replaces it."""

    drawn_on: ClassVar[TextIO | None] = None
    """The stream on which there is a progress line now."""

    def __init__(self) -> None:
        self._shown = sys.stderr.isatty()
        self._last_s = 0.0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.clear()

    @classmethod
    def clear(cls) -> None:
        """Remove the line from the terminal, if there is one."""
        drawn_on, cls.drawn_on = cls.drawn_on, None
        if drawn_on is not None and drawn_on is sys.stderr:
            _write(_CLEAR_LINE, drawn_on, end="")
            flush(drawn_on)

    @contextmanager
    def ticking(self, text: str) -> Iterator[None]:
        """Show `text` and the elapsed seconds, during work that does not report its progress."""
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
            self.clear()

    def note(self, text: str) -> None:
        """Print a line that stays, even if stderr is not a terminal."""
        note(text)

    def show(self, text: str, *, now: bool = False) -> None:
        """Replace the line, at most ten times a second unless `now`."""
        time_s = time.monotonic()
        if self._shown and (now or time_s - self._last_s >= _PROGRESS_EVERY_S):
            self._last_s = time_s
            ProgressLine.drawn_on = None
            _write(f"{_CLEAR_LINE}{plain(text)[: width(sys.stderr) - 1]}", sys.stderr, end="")
            flush(sys.stderr)
            ProgressLine.drawn_on = sys.stderr
