"""The coordinator's event log: one JSON object per line for programs, or one line of text for people."""

import sys
import time
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any, TextIO

from strobe.plain_text import LENGTH_MAX, json_of, plain, plain_lines, shortened

INFO = "info"
WARNING = "warning"
ERROR = "error"
_TRACEBACK = "traceback"
"""The only fact that may span several lines."""
_TRACEBACK_LENGTH_MAX = 100_000


class EventLog:
    """Writes each event at once. A closed reader does not stop the writer."""

    def __init__(self, stream: TextIO | None = None, *, as_json: bool = False) -> None:
        self._stream = stream
        self._as_json = as_json
        self._clock: Callable[[], float] = time.time

    def emit(self, event: str, level: str = INFO, /, **facts: Any) -> None:
        """Log `event`. Facts that are None or empty are omitted."""
        shown = {name: value for name, value in facts.items() if value not in (None, "", {})}
        line = self._json(event, level, shown) if self._as_json else self._text(event, level, shown)
        stream = self._stream or sys.stderr
        with suppress(OSError, ValueError):
            stream.write(line + "\n")
            stream.flush()

    def _json(self, event: str, level: str, facts: dict[str, Any]) -> str:
        moment = datetime.fromtimestamp(self._clock(), UTC).isoformat(timespec="milliseconds")
        bounded = {name: _bounded(name, value) for name, value in facts.items()}
        return json_of({"at": moment, "level": level, "event": event, **bounded}, str)

    def _text(self, event: str, level: str, facts: dict[str, Any]) -> str:
        moment = datetime.fromtimestamp(self._clock(), UTC).astimezone().strftime("%H:%M:%S.%f")[:-3]
        mark = "" if level == INFO else f"{level}: "
        trace = facts.pop(_TRACEBACK, None)
        words = [f"{name}={_word(value)}" for name, value in facts.items()]
        if trace is not None:
            words.append(f'{_TRACEBACK}="{_indented(str(trace))}"')
        return " ".join((moment, f"{mark}{plain(event)}", *words))


def _bounded(name: str, value: Any) -> Any:
    if not isinstance(value, str):
        return value
    return shortened(value, _TRACEBACK_LENGTH_MAX if name == _TRACEBACK else LENGTH_MAX)


def _word(value: Any) -> str:
    if isinstance(value, str):
        text = plain(value)
        quoted = any(character.isspace() for character in text) or not text
        return '"{}"'.format(text.replace('"', '\\"')) if quoted else text
    if isinstance(value, int | float | bool):
        return str(value)
    return json_of(value, str)


def _indented(lines: str) -> str:
    """Indent all lines but the first, so that none can be mistaken for a log line."""
    return plain_lines(lines, _TRACEBACK_LENGTH_MAX).replace("\n", "\n    ")
