"""`strobe coordinator`: where it listens, what it logs, and how it ends."""

import json
import re
import signal
import subprocess
import sys
from contextlib import contextmanager

from tests.cli.command_line import BANK, REPOSITORY
from tests.listening import listening

from strobe.runtime.settings import CoordinatorSettings


@contextmanager
def running_coordinator(store, *words):
    """Run a coordinator; give it, and all that it has logged when it listens."""
    command = [sys.executable, "-m", "strobe.cli", "coordinator", BANK, "--store", str(store), *words]
    with subprocess.Popen(command, cwd=REPOSITORY, stderr=subprocess.PIPE, text=True) as coordinator:
        try:
            lines = []
            while not lines or "listening" not in lines[-1]:
                lines.append(coordinator.stderr.readline())
                assert lines[-1], lines
            yield coordinator, lines
        finally:
            coordinator.kill()


def test_it_listens_on_loopback_unless_told_otherwise(tmp_path):
    """Whoever can reach its ports can take part: nobody else can, by default."""
    defaults = CoordinatorSettings()
    assert (defaults.listen, defaults.api) == ("127.0.0.1:7400", "127.0.0.1:7480")
    # These very ports may be taken on a machine that runs tests.
    here = ("--listen", "127.0.0.1:0", "--api", "127.0.0.1:0")
    with running_coordinator(tmp_path / "here", *here) as (coordinator, _):
        assert [host for host, _ in listening(coordinator.pid)] == ["127.0.0.1", "127.0.0.1"]
    everywhere = ("--listen", "0.0.0.0:0", "--api", "127.0.0.1:0")
    with running_coordinator(tmp_path / "everywhere", *everywhere) as (coordinator, _):
        assert [host for host, _ in listening(coordinator.pid)] == ["0.0.0.0", "127.0.0.1"]


def test_its_log_is_one_json_object_a_line_where_that_is_asked_for(tmp_path):
    addresses = ("--listen", "127.0.0.1:0", "--api", "127.0.0.1:0")
    with running_coordinator(tmp_path / "store", *addresses, "--json-logs") as (coordinator, lines):
        said = [json.loads(line) for line in lines]
        assert [one["event"] for one in said if one["event"] in ("started", "listening")] == ["started", "listening"]
        assert all(one["level"] == "info" and one["at"].endswith("+00:00") for one in said)
        assert said[0]["store"] == str(tmp_path / "store")
        coordinator.send_signal(signal.SIGTERM)
        assert coordinator.wait(30) == 0
        assert [json.loads(line)["level"] for line in coordinator.stderr] == []
    with running_coordinator(tmp_path / "store", *addresses) as (_, lines):
        assert all(re.match(r"\d\d:\d\d:\d\d\.\d{3} ", line) for line in lines)
