"""Helpers for the tests of `strobe up`."""

import signal
import sys

from tests.cli.command_line import Result

from strobe.cli.live.child import Child
from strobe.cli.live.child_log import ChildLog
from strobe.runtime.messages.api_documents import Status


def status_of(**changes):
    fields = dict.fromkeys(Status.__struct_fields__, 0)
    fields |= {
        name: []
        for name in ("processes", "channels", "open", "finished", "rollbacks", "troubles", "left", "conditions")
    }
    fields |= dict.fromkeys(("system", "store", "protocol", "listen"), "")
    fields |= {"settled": True, "rolling_back": False, "halted": None, "last_entry": None, "api": "127.0.0.1:1"}
    return Status(**(fields | changes))


def interrupted(program):
    """Interrupt the program once, and return its output and exit code."""
    program.send_signal(signal.SIGINT)
    out, err = program.communicate(timeout=60)
    return Result(program.returncode, out, err)


def child_that(tmp_path, program):
    return Child("b", [sys.executable, "-c"], [program], ChildLog(tmp_path / "b.log", lambda: None))


def ended(child):
    child.process.wait()
    return child.poll()
