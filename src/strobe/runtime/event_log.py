"""What a coordinator has to tell, event by event: one JSON object a line for programs, or one line for people."""

import sys
import time
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any, TextIO

import msgspec

INFO = "info"
WARNING = "warning"
ERROR = "error"


class EventLog:
    """Writes each event at once. A reader that is gone does not stop who writes."""

    def __init__(self, stream: TextIO | None = None, *, as_json: bool = False) -> None:
        self._stream = stream
        self._as_json = as_json
        self._clock: Callable[[], float] = time.time

    def say(self, event: str, level: str = INFO, /, **facts: Any) -> None:
        """Tell that `event` has happened. Facts that are None or empty are left out."""
        told = {name: value for name, value in facts.items() if value is not None and value != "" and value != {}}
        line = self._json(event, level, told) if self._as_json else self._text(event, level, told)
        stream = self._stream or sys.stderr
        with suppress(OSError, ValueError):
            stream.write(line + "\n")
            stream.flush()

    def _json(self, event: str, level: str, facts: dict[str, Any]) -> str:
        moment = datetime.fromtimestamp(self._clock(), UTC).isoformat(timespec="milliseconds")
        document = {"at": moment, "level": level, "event": event, **facts}
        return msgspec.json.encode(document, enc_hook=str).decode()

    def _text(self, event: str, level: str, facts: dict[str, Any]) -> str:
        moment = datetime.fromtimestamp(self._clock(), UTC).astimezone().strftime("%H:%M:%S.%f")[:-3]
        mark = "" if level == INFO else f"{level}: "
        words = (f"{name}={_word(value)}" for name, value in facts.items())
        return " ".join((moment, f"{mark}{event}", *words))


def _word(value: Any) -> str:
    if isinstance(value, str):
        return f'"{value}"' if any(character.isspace() for character in value) or not value else value
    if isinstance(value, int | float | bool):
        return str(value)
    return msgspec.json.encode(value, enc_hook=str).decode()
