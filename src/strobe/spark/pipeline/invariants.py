"""A user's invariants (G1): conditions on every snapshot, as SQL files and as Python functions over DataFrames.

An invariant returns the rows that violate it, each with its `snapshot_id`; no row means that it holds. It gets the
tables of several snapshots at once, and must judge each by itself. A file `*.sql` is one query, named by its leading
comment:

    -- name: conservation
    -- description: All money is always somewhere: 800 in all.
    SELECT snapshot_id, total FROM (...) WHERE total <> 800

A file `*.py` has any number of functions with the decorator `invariant`. Everything is tried on empty tables before the
pipeline starts, so that a mistake is reported at the start, with its file and line.
"""

import ast
import re
import traceback
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, TypeVar, overload

import msgspec
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from strobe.errors import UsageError
from strobe.handlers import Shape, check_function
from strobe.spark.dataframes.by_position import SnapshotTables, empty_tables
from strobe.spark.log.spark_errors import java_problem
from strobe.spark.schema import columns as c

SQL, PYTHON = ".sql", ".py"

_MARK = "_strobe_invariant"
_HEADING = re.compile(r"--\s*(name|description)\s*:\s*(.*?)\s*$", re.IGNORECASE)
_WORD = re.compile(
    r"""
    (?P<nothing> \s+ | --(?:\\\n|[^\n])* | /\*.*?\*/ )     # space and comments
    | r'[^']*' | r"[^"]*"                                 # texts in which a backslash is one
    | '(?:\\.|[^\\'])*' | "(?:\\.|[^\\"])*" | `[^`]*`     # texts, and names in quotes
    | \w+ | .
    """,
    re.VERBOSE | re.DOTALL | re.IGNORECASE,
)
"""SQL tokens, as far as needed to find the ends of strings and comments."""
_LINE = re.compile(r"\bline (\d+)\b")

Violating = Callable[[SnapshotTables], DataFrame]
_F = TypeVar("_F", bound=Callable[..., Any])


@overload
def invariant(function: _F) -> _F: ...
@overload
def invariant(*, name: str | None = None) -> Callable[[_F], _F]: ...
def invariant(function: Any = None, *, name: str | None = None) -> Any:
    """Mark a function from tables to the DataFrame of violating rows; its name and docstring are the invariant's."""

    def mark(marked: Any) -> Any:
        setattr(marked, _MARK, name or marked.__name__.replace("_", "-"))
        return marked

    return mark(function) if function is not None else mark


class Invariant(msgspec.Struct, frozen=True):
    """One invariant as plain data, so that it can be sent to other processes. `place` is its file."""

    name: str
    description: str
    place: str
    text: str
    function: str | None = None
    """The name of the function in a Python file; None in an SQL file."""

    def violating(self, spark: SparkSession, tables: SnapshotTables) -> DataFrame:
        """Return the rows of `tables` that violate it."""
        if self.function is None:
            tables.register(self.text)
            return spark.sql(_as_query(self.text))
        found = _module(self.place, self.text)[self.function](tables)
        if not hasattr(found, "sparkSession"):
            raise TypeError(f"returned {type(found).__name__} and not a DataFrame of the violating rows")
        return found


def read_invariants(directory: str | Path) -> list[Invariant]:
    """Return the invariants in the files of a directory, by name; raise UsageError at the first bad file."""
    root = Path(directory)
    if not root.is_dir():
        raise UsageError(f"{root} is not a directory; give the one with your invariants, *.sql and *.py")
    files = [path for path in sorted(root.iterdir()) if path.suffix.lower() in (SQL, PYTHON) and path.is_file()]
    found = [one for path in files for one in _read(path)]
    if not found:
        raise UsageError(f"{root} has no invariant: no *.sql file, and no *.py file with an @invariant function")
    return found


def check_invariants(spark: SparkSession, invariants: Sequence[Invariant], reserved: Iterable[str]) -> None:
    """Try every invariant on empty tables; raise UsageError for a mistake, with its file and line."""
    seen = dict.fromkeys(reserved, "a check of Strobe's own")
    for one in invariants:
        if one.name in seen:
            raise UsageError(f"{one.place}: the name {one.name!r} is taken by {seen[one.name]}; names must differ")
        seen[one.name] = one.place
    if not invariants:
        return
    apart = spark.newSession()  # keeps its views apart from the user's
    tables = empty_tables(apart)
    for one in invariants:
        _try_out(apart, one, tables)


def problem_of(error: Exception) -> str:
    """Return in one line what Spark or a user's function raised."""
    if isinstance(error, Py4JJavaError):
        return java_problem(error)
    if not isinstance(error, PySparkException):
        return f"{type(error).__name__}: {error}".splitlines()[0]
    text = error.getMessage() or str(error)
    _, python, raised = text.rpartition("Traceback (most recent call last):")
    lines = [line for line in raised.splitlines() if line.strip()]
    if python:
        # In a Python traceback, the error follows its indented stack frames; Java's frames may come after it.
        lines = [line for line in lines if not line[0].isspace()]
    lines = [line.strip() for line in lines if not line.strip().startswith("SQLSTATE")]
    return lines[0] if lines else type(error).__name__


def _read(path: Path) -> list[Invariant]:
    try:
        text = path.read_text("utf-8-sig")  # some editors write a byte order mark
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{path} cannot be read: {error}") from error
    return [_read_sql(path, text)] if path.suffix.lower() == SQL else _read_python(path, text)


def _read_sql(path: Path, text: str) -> Invariant:
    headings: dict[str, str] = {}
    for line in text.splitlines():
        if not line.strip().startswith("--"):
            if line.strip():
                break
            continue
        if match := _HEADING.match(line.strip()):
            headings.setdefault(match[1].lower(), match[2])
    return Invariant(headings.get("name") or path.stem, headings.get("description", ""), str(path), text)


def _read_python(path: Path, text: str) -> list[Invariant]:
    try:
        functions = _module(str(path), text)
    except SyntaxError as error:
        raise UsageError(f"{path}:{error.lineno}: {error.msg}") from error
    except Exception as error:
        raise UsageError(f"{path}:{_line_in(error, str(path))}: {problem_of(error)}") from error
    for name, function in functions.items():
        check_function(f"{path}: the invariant {name}", function, Shape(name, ("tables",)))
    return [
        Invariant(getattr(function, _MARK), _first_line(function.__doc__), str(path), text, name)
        for name, function in functions.items()
    ]


_modules: dict[tuple[str, str], dict[str, Violating]] = {}


def _module(place: str, text: str) -> dict[str, Violating]:
    """Run a user's file, once, and return its invariants by the names of their functions."""
    if (place, text) not in _modules:
        names: dict[str, Any] = {"__name__": f"invariants_{Path(place).stem}", "__file__": place}
        exec(compile(ast.parse(text, place), place, "exec"), names)
        _modules[place, text] = {name: one for name, one in names.items() if hasattr(one, _MARK)}
    return _modules[place, text]


def _try_out(spark: SparkSession, one: Invariant, tables: SnapshotTables) -> None:
    try:
        found = one.violating(spark, tables).columns
    except Exception as error:
        line = _sql_line(error) if one.function is None else _line_in(error, one.place)
        raise UsageError(f"{one.place}:{line}: {problem_of(error)}") from error
    if c.SNAPSHOT_ID not in map(str.lower, found):
        raise UsageError(
            f"{one.place}: {one.name} returns {', '.join(found)}; it must return {c.SNAPSHOT_ID} as well, "
            "so that the snapshot of each row is known"
        )
    twice = [name for name, times in Counter(name.lower() for name in found).items() if times > 1]
    if twice:
        raise UsageError(f"{one.place}: {one.name} returns the column {twice[0]} twice; give one of them another name")


def _as_query(text: str) -> str:
    """Return the text as a subquery: a command in it is a syntax error, and is not run.

    Its lines keep their numbers.
    """
    return f"SELECT * FROM ( {_without_end(text)}\n)"


def _without_end(text: str) -> str:
    """Return the text without a final semicolon and the comments after it."""
    end = None
    for word in _WORD.finditer(text):
        if word["nothing"] is None:
            end = word.start() if word[0] == ";" else None
    return text[:end]


def _sql_line(error: Exception) -> int:
    match = _LINE.search(str(error))
    return int(match[1]) if match else 1


def _line_in(error: Exception, place: str) -> int:
    """Return the innermost line of the user's file in the traceback."""
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == place]
    return lines[-1] or 1 if lines else 1


def _first_line(text: str | None) -> str:
    return (text or "").strip().partition("\n")[0]
