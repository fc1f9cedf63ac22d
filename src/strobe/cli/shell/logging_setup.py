"""Logging of a live program to stderr: a line of text, or a JSON object per line."""

import logging

from strobe.cli.shell.output import note
from strobe.runtime.event_log import ERROR, INFO, WARNING, EventLog
from strobe.watchdog import STACK


class _EventLogHandler(logging.Handler):
    """Forwards log records to an `EventLog`."""

    def __init__(self, events: EventLog, process: str) -> None:
        super().__init__()
        self._events = events
        self._process = process

    def emit(self, record: logging.LogRecord) -> None:
        level = ERROR if record.levelno >= logging.ERROR else WARNING if record.levelno >= logging.WARNING else INFO
        trace = (
            logging.Formatter().formatException(record.exc_info) if record.exc_info else getattr(record, STACK, None)
        )
        self._events.emit(record.getMessage(), level, process=self._process, traceback=trace)


class NoteHandler(logging.Handler):
    """Prints log records on stderr, beside the result of a command."""

    def emit(self, record: logging.LogRecord) -> None:
        note(record.getMessage())


def start_logging(as_json: bool, process: str) -> EventLog:
    """Log to stderr; return the event log."""
    events = EventLog(as_json=as_json)
    for name, level in (("strobe", logging.INFO), ("asyncio", logging.WARNING)):
        root = logging.getLogger(name)
        root.handlers = [_EventLogHandler(events, process)]
        root.setLevel(level)
        root.propagate = False
    return events
