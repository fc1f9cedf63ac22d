"""An S3 server for tests (moto's, over real HTTP) in a separate process, and ways to make it fail.

`python -m tests.support.object_server` prints its port and serves until its standard input ends.

Requests are served one at a time, because moto checks whether an object exists and creates it in two steps, and another
request could come in between. Real object stores do this atomically.

POST /strobe-faults with {"method": "PUT", "path": "log/", "fault": "lose", "times": 1} makes the next such request
fail:

  lose      it is done, but the answer is lost: 503
  refuse    it is not done: 503
  deny      it is not done: 403
  ignore    its condition (If-None-Match) is ignored
"""

import json
import os
import subprocess
import sys
import threading
import urllib.request
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
SECRET = "a-secret-that-is-never-shown"
_BUSY = b"<Error><Code>SlowDown</Code></Error>"


class ObjectServer:
    """The running server, as tests use it."""

    def __init__(self, port: int) -> None:
        self.endpoint = f"http://127.0.0.1:{port}"
        self.environment = {
            "AWS_ENDPOINT_URL": self.endpoint,
            "AWS_ACCESS_KEY_ID": "tester",
            "AWS_SECRET_ACCESS_KEY": SECRET,
            "AWS_REGION": "us-east-1",
        }
        self._stores = 0
        self._request("PUT", "/strobe")

    def new_url(self) -> str:
        """Return a URL without a store."""
        self._stores += 1
        return f"s3://strobe/tests/{self._stores}"

    def fail(self, method: str, path: str, fault: str, times: int = 1) -> None:
        body = {"method": method, "path": path, "fault": fault, "times": times}
        self._request("POST", "/strobe-faults", json.dumps(body).encode())

    def _request(self, method: str, path: str, body: bytes | None = None) -> None:
        with urllib.request.urlopen(urllib.request.Request(self.endpoint + path, body, method=method), timeout=30):
            pass


@contextmanager
def running() -> Iterator[ObjectServer]:
    """Start a server; this process and its children use it."""
    command = [sys.executable, "-m", "tests.support.object_server"]
    with (
        subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process,
        pytest.MonkeyPatch.context() as patch,
    ):
        try:
            assert process.stdout is not None
            server = ObjectServer(int(process.stdout.readline()))
            for name, value in server.environment.items():
                patch.setenv(name, value)
            yield server
        finally:
            process.kill()


class Faulty:
    """The application, one request at a time, with the requested faults."""

    def __init__(self, application: Any) -> None:
        self._application = application
        self._lock = threading.Lock()
        self._orders: list[dict[str, Any]] = []

    def __call__(self, environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        with self._lock:
            if environ["PATH_INFO"] == "/strobe-faults":
                self._orders.append(json.loads(environ["wsgi.input"].read(int(environ["CONTENT_LENGTH"]))))
                start_response("200 OK", [("Content-Length", "0")])
                return []
            return self._serve(environ, start_response, self._fault(environ))

    def _fault(self, environ: dict[str, Any]) -> str | None:
        for order in self._orders:
            if (
                order["times"]
                and order["method"] == environ["REQUEST_METHOD"]
                and order["path"] in environ["PATH_INFO"]
            ):
                order["times"] -= 1
                return str(order["fault"])
        return None

    def _serve(self, environ: dict[str, Any], start_response: Any, fault: str | None) -> Iterable[bytes]:
        if fault == "ignore":
            environ.pop("HTTP_IF_NONE_MATCH", None)
        if fault in ("refuse", "deny"):
            environ["wsgi.input"].read(int(environ.get("CONTENT_LENGTH") or 0))
        else:
            answer = list(self._application(environ, start_response if fault != "lose" else lambda *_: None))
        if fault in ("refuse", "lose", "deny"):
            status = "403 Forbidden" if fault == "deny" else "503 Slow Down"
            answer = [_BUSY] if environ["REQUEST_METHOD"] != "HEAD" else []
            start_response(
                status, [("Content-Type", "application/xml"), ("Content-Length", str(sum(map(len, answer))))]
            )
        return answer


def main() -> None:
    from moto.server import DomainDispatcherApplication, create_backend_app
    from werkzeug.serving import WSGIRequestHandler, make_server

    class Quiet(WSGIRequestHandler):
        def log_request(self, *_: object) -> None: ...

    application = Faulty(DomainDispatcherApplication(create_backend_app))
    server = make_server("127.0.0.1", 0, application, threaded=True, request_handler=Quiet)
    sys.stdout.write(f"{server.server_port}\n")
    sys.stdout.flush()
    threading.Thread(target=server.serve_forever, daemon=True).start()
    sys.stdin.read()
    os._exit(0)


if __name__ == "__main__":
    main()
