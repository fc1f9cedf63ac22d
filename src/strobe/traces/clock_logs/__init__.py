"""Vector-clock logs in the format of ShiViz: reading, checking, importing as traces and exporting from traces (D7).

In: text logs of any program that has a clock in each line. Out: traces, or every line whose clock is impossible.
"""

from strobe.traces.clock_logs.checking import ClockLogInvalid, Impossible, find_impossible
from strobe.traces.clock_logs.exporting import to_log
from strobe.traces.clock_logs.importing import import_log, to_trace
from strobe.traces.clock_logs.parsing import DEFAULT_PARSER, ClockEvent, Execution, read_log

__all__ = [
    "DEFAULT_PARSER",
    "ClockEvent",
    "ClockLogInvalid",
    "Execution",
    "Impossible",
    "find_impossible",
    "import_log",
    "read_log",
    "to_log",
    "to_trace",
]
