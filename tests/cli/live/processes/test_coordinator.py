"""`strobe coordinator`: its listening addresses, log and exit codes."""

import json
import os
import re
import signal
import socket
import subprocess
import sys
from contextlib import contextmanager

import pytest
from tests.cli.command_line import BANK, REPOSITORY, run, run_apart
from tests.support.listening import listening

from strobe.protocol.values.log_entries import EpochStart
from strobe.runtime.settings import CoordinatorSettings
from strobe.storage import Store
from strobe.storage.entries.log_file import entry_name


@contextmanager
def running_coordinator(store, *words):
    """Run a coordinator; yield it and the lines that it has logged until it listens."""
    command = [sys.executable, "-m", "strobe", "coordinator", BANK, "--store", str(store), "--create", *words]
    with subprocess.Popen(command, cwd=REPOSITORY, stderr=subprocess.PIPE, text=True) as coordinator:
        try:
            lines = []
            while not lines or "listening" not in lines[-1]:
                lines.append(coordinator.stderr.readline())
                assert lines[-1], lines
            yield coordinator, lines
        finally:
            coordinator.kill()


def test_it_listens_on_loopback_by_default(tmp_path):
    """Everybody who can reach its ports can take part, so by default only this host can."""
    defaults = CoordinatorSettings()
    assert (defaults.listen, defaults.api) == ("127.0.0.1:7400", "127.0.0.1:7480")
    # The default ports may be in use on a machine that runs tests.
    here = ("--listen", "127.0.0.1:0", "--api", "127.0.0.1:0")
    with running_coordinator(tmp_path / "here", *here) as (coordinator, _):
        assert [host for host, _ in listening(coordinator.pid)] == ["127.0.0.1", "127.0.0.1"]
    everywhere = ("--listen", "0.0.0.0:0", "--api", "127.0.0.1:0")
    with running_coordinator(tmp_path / "everywhere", *everywhere) as (coordinator, _):
        assert [host for host, _ in listening(coordinator.pid)] == ["0.0.0.0", "127.0.0.1"]


def test_its_log_is_one_json_object_per_line_on_request(tmp_path):
    addresses = ("--listen", "127.0.0.1:0", "--api", "127.0.0.1:0")
    with running_coordinator(tmp_path / "store", *addresses, "--json-logs") as (coordinator, lines):
        events = [json.loads(line) for line in lines]
        assert [event["event"] for event in events if event["event"] in ("started", "listening")] == [
            "started",
            "listening",
        ]
        assert all(event["level"] == "info" and event["at"].endswith("+00:00") for event in events)
        assert events[0]["store"] == str(tmp_path / "store")
        coordinator.send_signal(signal.SIGTERM)
        assert coordinator.wait(30) == 0
        assert [json.loads(line)["level"] for line in coordinator.stderr] == []
    with running_coordinator(tmp_path / "store", *addresses) as (_, lines):
        assert all(re.match(r"\d\d:\d\d:\d\d\.\d{3} ", line) for line in lines)


@pytest.mark.parametrize(("how", "code"), [(signal.SIGTERM, 0), (signal.SIGINT, 130), ("parent gone", 0)])
def test_it_ends_on_request_while_its_store_does_not_answer(tmp_path, how, code):
    lifeline, held = os.pipe()
    with socket.create_server(("127.0.0.1", 0)) as silent:
        silent.settimeout(30)
        environment = os.environ | {
            "AWS_ENDPOINT_URL": f"http://127.0.0.1:{silent.getsockname()[1]}",
            "AWS_ACCESS_KEY_ID": "tester",
            "AWS_SECRET_ACCESS_KEY": "secret",
            "XDG_STATE_HOME": str(tmp_path),
            "STROBE_LIFELINE": str(lifeline),
        }
        command = [sys.executable, "-m", "strobe", "coordinator", BANK, "--store", "s3://bucket/shop"]
        with subprocess.Popen(command, cwd=REPOSITORY, env=environment, pass_fds=(lifeline,)) as coordinator:
            try:
                connection, _ = silent.accept()
                if isinstance(how, signal.Signals):
                    coordinator.send_signal(how)
                    assert coordinator.wait(30) == code
                    os.close(held)
                else:
                    os.close(held)
                    assert coordinator.wait(30) == code
                connection.close()
            finally:
                coordinator.kill()
    os.close(lifeline)


def test_S1_on_a_damaged_log_it_ends_as_every_command_does(tmp_path):
    store = Store.create(tmp_path / "store")
    store.append(EpochStart(1, 0), 0)
    entry = tmp_path / "store" / entry_name(0)
    entry.write_bytes(entry.read_bytes() + b"?")
    listed = run("snapshot", "list", "--store", tmp_path / "store")
    coordinated = run_apart("coordinator", BANK, "--store", str(tmp_path / "store"))
    assert (coordinated.code, coordinated.error) == (listed.code, listed.error)
    assert (listed.code, entry_name(0) in listed.error) == (1, True)
