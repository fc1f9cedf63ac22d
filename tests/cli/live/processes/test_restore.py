"""`restore`, `leave` and `snapshot take`, with a test server in place of the API of a running system."""

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import msgspec
import pytest
from tests.cli.command_line import refused, run
from tests.cli.live.processes.started_up import status_of
from tests.cli.live.processes.test_up import process_of

from strobe.cli.snapshots import take as taking
from strobe.runtime.messages.api_documents import Trouble


class Coordinator(ThreadingHTTPServer):
    """Answers every request with `answer`, and records it in `requests`."""

    def __init__(self):
        super().__init__(("127.0.0.1", 0), Answering)
        self.code = 200
        self.answer = {}
        self.requests = []
        self.status = None
        self.may_answer = threading.Event()
        self.may_answer.set()

    @property
    def api(self):
        return f"127.0.0.1:{self.server_port}"


class Answering(BaseHTTPRequestHandler):
    def do_POST(self):
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.server.requests.append((self.path, json.loads(body)))
        assert self.server.may_answer.wait(60)
        self._answer(json.dumps(self.server.answer).encode())

    def do_GET(self):
        self._answer(msgspec.json.encode(self.server.status or self.server.answer))
        self.server.may_answer.set()

    def _answer(self, answer):
        self.send_response(self.server.code)
        self.send_header("Content-Length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    def log_message(self, *_):
        pass


@pytest.fixture
def coordinator():
    with Coordinator() as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield server
        server.shutdown()
        thread.join()


RESTORED = {"epoch": 3, "restored": "000002-00000007-coordinator", "undone": {"b": 12, "a": 1234}}


def test_restore_prints_the_new_epoch_and_the_undone_events(coordinator):
    coordinator.answer = RESTORED
    result = run("restore", "000002-00000007", "--api", coordinator.api)
    assert (result.code, result.err) == (0, "")
    assert result.out.splitlines() == [
        "rolled back to 000002-00000007-coordinator; this is epoch 3",
        "  a: 1,234 events undone",
        "  b: 12 events undone",
    ]
    ((path, request),) = coordinator.requests
    assert path == "/v1/restore"
    assert (request["snapshot"], request["fork"]) == ("000002-00000007", False)


def test_restore_uses_the_latest_by_default_and_forks_only_on_request(coordinator):
    coordinator.answer = RESTORED | {"restored": None}
    result = run("restore", "--fork", "--api", coordinator.api, "--json")
    assert result.document == RESTORED | {"restored": None}
    request = coordinator.requests[0][1]
    assert (request["snapshot"], request["fork"]) == ("latest", True)
    assert "rolled back to the beginning" in run("restore", "--api", coordinator.api).out


def test_restore_waits_as_long_as_requested(coordinator):
    coordinator.answer = RESTORED
    for words, seconds in (((), 60.0), (("--timeout", "2.5"), 2.5)):
        assert run("restore", "--api", coordinator.api, *words).code == 0
        assert coordinator.requests[-1][1]["timeout_s"] == seconds
    assert "--timeout SECONDS" in run("restore", "--help").out


@pytest.mark.parametrize(("http", "code"), [(400, 2), (404, 2), (409, 1), (503, 3), (504, 3)])
def test_a_refused_restore_prints_the_reason_and_sets_the_exit_code(coordinator, http, code):
    coordinator.code, coordinator.answer = http, {"error": "its proof does not hold"}
    result = run("restore", "latest", "--api", coordinator.api, "--json")
    assert result.code == code
    assert result.error == "error: its proof does not hold"
    assert result.document["error"]["exit_code"] == code


@pytest.mark.parametrize("command", [["restore"], ["leave", "d"], ["snapshot", "take"]])
def test_the_system_must_be_named_and_must_run(tmp_path, command):
    refused(run(*command), "name the system: --store DIR, or --api HOST:PORT")
    refused(run(*command, "--store", "x", "--api", "y:1"), "name the system")
    result = run(*command, "--api", "127.0.0.1:1")
    assert result.code == 3
    assert "no coordinator answers at 127.0.0.1:1" in result.error
    result = run(*command, "--store", tmp_path / "nothing")
    assert result.code in (2, 3)
    assert "nothing" in result.error


def test_leave_prints_the_leaving_process(coordinator):
    coordinator.answer = {"accepted": "process d leaves as soon as the view is settled"}
    assert run("leave", "d", "--api", coordinator.api) == (0, "d is leaving\n", "")
    assert coordinator.requests[0][0] == "/v1/processes/d/leave"
    assert run("leave", "d", "--api", coordinator.api, "--json").document == coordinator.answer


def test_take_prints_the_outcome_and_an_abort_is_a_failure(coordinator):
    coordinator.answer = {"id": "000001-00000002-coordinator", "outcome": "committed", "reason": ""}
    result = run("snapshot", "take", "--from", "a", "--from", "b", "--api", coordinator.api)
    assert result == (0, "000001-00000002-coordinator committed\n", "")
    assert coordinator.requests[0][1]["initiators"] == ["a", "b"]
    coordinator.answer |= {"outcome": "aborted", "reason": "process b crashed"}
    result = run("snapshot", "take", "--api", coordinator.api)
    assert (result.code, result.out) == (1, "")
    assert result.error == "error: snapshot 000001-00000002-coordinator was aborted: process b crashed"


@pytest.mark.parametrize(
    ("status", "reason"),
    [
        ({"processes": [process_of("a", "running"), process_of("b", "waiting")]}, "it waits for b to run"),
        ({"rolling_back": True}, "a rollback is in progress"),
        (
            {
                "processes": [process_of("b", "missing")],
                "troubles": [Trouble("store", "the disk is full"), Trouble("missing", "process b is not running")],
            },
            "the disk is full; it waits for b to run",
        ),
        ({}, None),
    ],
)
def test_take_reports_once_what_delays_the_snapshot(coordinator, monkeypatch, status, reason):
    """Also if stderr is not a terminal."""
    monkeypatch.setattr(taking, "SOON_S", 0.0)
    coordinator.answer = {"id": "000001-00000002-coordinator", "outcome": "committed", "reason": ""}
    coordinator.status = status_of(**status)
    coordinator.may_answer.clear()  # until the status is requested
    result = run("snapshot", "take", "--api", coordinator.api)
    note = f"the snapshot is not complete yet: {reason}\n" if reason else ""
    assert result == (0, "000001-00000002-coordinator committed\n", note)


def test_take_works_without_a_reason_for_the_delay(coordinator, monkeypatch):
    monkeypatch.setattr(taking, "SOON_S", 0.0)
    coordinator.code, coordinator.answer = 503, {"error": "everything is stopped"}
    result = run("snapshot", "take", "--api", coordinator.api)
    assert (result.code, result.error) == (3, "error: everything is stopped")


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (("--timeout", "-10"), 2),
        (("--timeout", "1e12"), 2),
        (("--timeout", "nan"), 2),
        (("--api", f"{'x' * 70}:80"), 3),
    ],
)
@pytest.mark.parametrize("command", [["restore"], ["snapshot", "take"]])
def test_an_invalid_timeout_or_host_is_an_error_of_one_line(command, words, code):
    result = run(*command, "--api", "127.0.0.1:1", *words)
    assert result.code == code
    assert result.error
