"""Alerts: sent to a command or a webhook, with a stable id per finding; a failing hook does not stop the pipeline."""

import json
import re
import socket
import sys
import threading
import time
from base64 import b64encode
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer, ThreadingHTTPServer
from pathlib import Path

import pytest

from strobe.errors import UsageError
from strobe.spark.pipeline import alerts
from strobe.spark.pipeline.alerts import (
    AT_ONCE,
    ATTEMPTS,
    FAILED_MAX,
    TIMEOUT_S,
    Alert,
    AlertHooks,
    alert_hooks,
    alert_id,
)

ALERT = Alert(
    alert_id("store", "snapshot", "proof"), "store", "a->b: lost; $(touch x)", 3, "snapshot", "proof", "violated"
)


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(alerts, "PAUSE_S_MIN", 0.0)


def appending(path: Path) -> tuple[str, ...]:
    return sys.executable, "-c", f"import sys; open({str(path)!r}, 'ab').write(sys.stdin.buffer.read())"


def test_a_command_gets_each_alert_as_json_on_its_input(tmp_path: Path) -> None:
    assert AlertHooks(appending(tmp_path / "alerts")).send([ALERT, ALERT]) == 0
    first, second = (json.loads(line) for line in (tmp_path / "alerts").read_text().splitlines())
    assert first == second
    assert first["id"] == alert_id("store", "snapshot", "proof")
    assert (first["snapshot_id"], first["check"], first["verdict"]) == ("snapshot", "proof", "violated")
    assert first["reason"] == ALERT.reason


def test_the_command_is_not_run_by_a_shell(tmp_path: Path) -> None:
    hooks = alert_hooks(f"echo ; touch {tmp_path}/made", None)
    assert hooks.send([ALERT]) == 0
    assert list(tmp_path.iterdir()) == []


authorizations: list[str | None] = []


@pytest.fixture
def server() -> Iterator[tuple[str, list[bytes], list[int]]]:
    """A server on loopback that answers with the given codes, then with 200."""
    bodies: list[bytes] = []
    codes: list[int] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            bodies.append(self.rfile.read(int(self.headers["Content-Length"])))
            authorizations.append(self.headers["Authorization"])
            self.send_response(codes.pop(0) if codes else 200)
            self.send_header("Location", "/elsewhere")
            self.end_headers()

        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()

        def log_message(self, *words: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Handler) as running:
        thread = threading.Thread(target=running.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{running.server_port}/alerts", bodies, codes
        running.shutdown()
        thread.join()


def test_a_webhook_that_fails_is_tried_again(server: tuple[str, list[bytes], list[int]]) -> None:
    url, bodies, codes = server
    codes += [500, 503]
    assert alert_hooks(None, url).send([ALERT]) == 0
    assert len(bodies) == 3
    assert json.loads(bodies[-1])["id"] == ALERT.id


def test_a_webhook_without_http_or_with_a_redirect_fails(
    server: tuple[str, list[bytes], list[int]], caplog: pytest.LogCaptureFixture
) -> None:
    """A redirected alert would lose its body."""
    url, got, answers = server
    answers[:] = [302] * ATTEMPTS
    assert AlertHooks(webhook=url).send([ALERT]) == 1
    assert len(got) == ATTEMPTS
    with socket.create_server(("127.0.0.1", 0)) as listening:
        address = f"http://127.0.0.1:{listening.getsockname()[1]}/"
        talker = threading.Thread(target=talk_garbage, args=(listening,))
        talker.start()
        assert AlertHooks(webhook=address).send([ALERT]) == 1
        talker.join()
    assert "was not delivered" in caplog.text


def talk_garbage(listening: socket.socket) -> None:
    for _ in range(ATTEMPTS):
        connection, _address = listening.accept()
        with connection:
            connection.recv(65536)
            connection.sendall(b"garbage\r\n\r\n")


def test_the_password_of_a_webhook_appears_in_no_message(
    server: tuple[str, list[bytes], list[int]], caplog: pytest.LogCaptureFixture
) -> None:
    url, _, answers = server
    with_secrets = url.replace("http://", "http://user:S3%63ret@") + "?token=T0ken"
    assert alert_hooks(None, with_secrets).send([ALERT]) == 0
    assert authorizations[-1] == f"Basic {b64encode(b'user:S3cret').decode()}"
    answers[:] = [500] * ATTEMPTS
    assert alert_hooks(None, with_secrets).send([ALERT]) == 1
    assert f"was not delivered: {url.removesuffix('/alerts')}: HTTP Error 500" in caplog.text
    assert not re.search(r"S3|cret|T0ken", caplog.text)
    with pytest.raises(UsageError) as error:
        alert_hooks(None, "ftp://user:S3cret@host/")
    assert "S3cret" not in str(error.value)


def test_a_slow_command_is_killed_with_its_children_and_not_shown(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(alerts, "TIMEOUT_S", 2.0)
    monkeypatch.setattr(alerts, "ATTEMPTS", 1)
    pid = tmp_path / "pid"
    assert AlertHooks(("sh", "-c", f"sleep 600 & echo $! > {pid}; wait", "T0ken")).send([ALERT]) == 1
    assert "was not delivered: sh timed out after 2 s" in caplog.text
    assert "T0ken" not in caplog.text
    deadline_s = time.monotonic() + TIMEOUT_S
    while is_running(int(pid.read_text())) and time.monotonic() < deadline_s:
        time.sleep(0.01)  # it has no living parent that could wait for it
    assert not is_running(int(pid.read_text()))


def is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_a_hook_that_keeps_failing_is_given_up_and_reported(caplog: pytest.LogCaptureFixture) -> None:
    logger = alerts.log
    logger.propagate = True
    failing = AlertHooks((sys.executable, "-c", "import sys; sys.exit('no such pager')"))
    assert failing.send([ALERT] * 50) == 50
    # A record may come through several loggers: which ones have handlers depends on earlier tests in this process.
    lines = [record.getMessage() for record in {id(record): record for record in caplog.records}.values()]
    tried = [line for line in lines if "was not delivered: " in line and "no such pager" in line]
    assert FAILED_MAX <= len(tried) < FAILED_MAX + AT_ONCE
    assert f"the alert hook fails: {50 - len(tried)} alerts of this batch are not sent" in caplog.text


def test_all_alerts_share_the_time_limit_of_a_silent_webhook(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """D2: it delays verdicts only for that time, and unsent alerts are reported."""
    monkeypatch.setattr(alerts, "BATCH_TIMEOUT_S", 0.3)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        started_s = time.monotonic()
        assert AlertHooks(webhook=f"http://127.0.0.1:{silent.getsockname()[1]}/").send([ALERT] * 1000) == 1000
        assert time.monotonic() - started_s < TIMEOUT_S
    assert "the alert hook is too slow: 1000 alerts of this batch are not sent; the tables have them" in caplog.text


def test_several_alerts_are_sent_at_once() -> None:
    """Each request is answered only when a second one has arrived."""
    both = threading.Barrier(2, timeout=TIMEOUT_S)

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            both.wait()
            self.send_response(200)
            self.end_headers()

        def log_message(self, *words: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as running:
        thread = threading.Thread(target=running.serve_forever)
        thread.start()
        assert AlertHooks(webhook=f"http://127.0.0.1:{running.server_port}/").send([ALERT] * 2) == 0
        running.shutdown()
        thread.join()


@pytest.mark.parametrize(
    ("command", "webhook", "problem"),
    [
        ("no-such-program --now", None, "no program 'no-such-program'"),
        ("echo 'open", None, "cannot be split"),
        ("", None, "no program"),
        (None, "file:///etc/passwd", "is not a URL"),
        (None, "http://", "is not a URL"),
        (None, "http://host:port/", "is not a URL"),
        (None, "http://host/a b", "is not a URL"),
    ],
)
def test_hooks_that_cannot_work_are_refused_at_the_start(
    command: str | None, webhook: str | None, problem: str
) -> None:
    with pytest.raises(UsageError, match=problem):
        alert_hooks(command, webhook)
