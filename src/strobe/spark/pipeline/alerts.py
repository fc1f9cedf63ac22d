"""Alerts: a command or a webhook gets every verdict that does not hold, and every quarantined file (D2).

An alert is one JSON object: on the standard input of the command, or as the body of a POST. It is sent after its
verdict is written, and **at least once**: a pipeline that is killed between the two sends it again. The same finding
always has the same `id`, so receivers can drop duplicates. A failing hook is retried a few times. Then this alert is
given up, with a line in the log. A hook never ends the stream, and the tables have everything.

The next batch waits for the alerts of this one. So all alerts of a batch share one time limit, and a few are sent at
once. A hook that does not respond costs that time, whatever the number of alerts.
"""

import logging
import os
import shlex
import shutil
import signal
import subprocess
import threading
import time
import urllib.request
from base64 import b64encode
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any
from urllib.parse import unquote_to_bytes, urlsplit, urlunsplit

import msgspec
from blake3 import blake3

from strobe.backoff import Backoff
from strobe.errors import UsageError
from strobe.plain_text import json_of

ATTEMPTS = 3
PAUSE_S_MIN = 0.5
PAUSE_S_MAX = 1.5
TIMEOUT_S = 10.0
FAILED_MAX = 3
"""After this many failed deliveries in a row, the rest of the batch is given up: the hook is down."""
AT_ONCE = 8
BATCH_TIMEOUT_S = 30.0
"""For all alerts of a batch. The remaining ones are not sent."""

Deliver = Callable[[bytes, float], None]
"""Delivers one alert within the given number of seconds; raises if that fails."""

log = logging.getLogger("strobe.pipeline")


class Alert(msgspec.Struct, frozen=True, omit_defaults=True):
    """A verdict that does not hold (`check` and `verdict`), or a file in quarantine (`uri`)."""

    id: str
    store: str
    reason: str | None
    batch_id: int
    snapshot_id: str | None = None
    check: str | None = None
    verdict: str | None = None
    description: str | None = None
    """The description of the check, if it is a user's invariant."""
    uri: str | None = None


def alert_id(*parts: str | None) -> str:
    """Return an id that depends only on the parts."""
    return blake3(msgspec.json.encode(parts)).hexdigest()[:32]


class AlertHooks(msgspec.Struct, frozen=True):
    """The destinations of alerts; plain data. `command` is an argument list, run without a shell."""

    command: tuple[str, ...] = ()
    webhook: str | None = None

    def __bool__(self) -> bool:
        return bool(self.command or self.webhook)

    def send(self, alerts: Iterable[Alert]) -> int:
        """Send every alert to every hook; return the number of deliveries given up."""
        alerts = list(alerts)
        hooks: list[Deliver] = []
        if self.command:
            hooks.append(partial(_run_command, self.command))
        if self.webhook:
            hooks.append(partial(_post, self.webhook))
        until_s = time.monotonic() + BATCH_TIMEOUT_S
        under_way = [_Sending(deliver, alerts, until_s) for deliver in hooks]
        return sum(sending.finish() for sending in under_way)


def alert_hooks(command: str | None, webhook: str | None) -> AlertHooks:
    """Return the hooks of a command line; raise UsageError for a missing program or an invalid address."""
    words = _words(command) if command is not None else ()
    if webhook is not None and not _is_address(webhook):
        # Not shown, because it may contain a password.
        raise UsageError("--alert-webhook: that is not a URL; give one like http://127.0.0.1:8080/alerts")
    return AlertHooks(words, webhook)


def _is_address(url: str) -> bool:
    try:
        parts = urlsplit(url)
        plain = url.isascii() and url.isprintable() and " " not in url
        return plain and parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:  # an invalid port
        return False


def _words(command: str) -> tuple[str, ...]:
    try:
        words = tuple(shlex.split(command))
    except ValueError as error:
        raise UsageError(f"--alert-command cannot be split into words ({error}): {command}") from error
    if not words or shutil.which(words[0]) is None:
        raise UsageError(f"--alert-command: there is no program {words[0] if words else ''!r} that can be run")
    return words


class _Sending:
    """The alerts of a batch on their way to one hook, a few at a time, at most until `until_s`."""

    def __init__(self, deliver: Deliver, alerts: Sequence[Alert], until_s: float) -> None:
        self._deliver = deliver
        self._until_s = until_s
        self._lock = threading.Lock()
        self._waiting = deque(alerts)
        self._undelivered = len(alerts)
        self._failed = self._failed_in_a_row = 0
        self._over = False
        # Daemon threads, so that a stuck hook does not keep the program from exiting.
        self._threads = [threading.Thread(target=self._work, daemon=True) for _ in alerts[:AT_ONCE]]
        for thread in self._threads:
            thread.start()

    def finish(self) -> int:
        """Wait for the end; log and return the number of alerts given up."""
        for thread in self._threads:
            thread.join(max(0.0, self._until_s - time.monotonic()))
        with self._lock:
            self._over = True
            undelivered, unsent = self._undelivered, self._undelivered - self._failed
        if unsent:
            problem = "is too slow" if time.monotonic() >= self._until_s else "fails"
            log.warning(
                "the alert hook %s: %d alerts of this batch are not sent; the tables have them", problem, unsent
            )
        return undelivered

    def _work(self) -> None:
        while (alert := self._next()) is not None:
            problem = self._problem_of(alert)
            with self._lock:
                if self._over:
                    return
                if problem is None:
                    self._undelivered -= 1
                    self._failed_in_a_row = 0
                    continue
                if time.monotonic() >= self._until_s:
                    return  # finish() counts it as not sent
                self._failed += 1
                self._failed_in_a_row += 1
            log.warning("alert %s was not delivered: %s", alert.id, problem)

    def _next(self) -> Alert | None:
        with self._lock:
            down = self._failed_in_a_row >= FAILED_MAX
            return None if self._over or down or not self._waiting else self._waiting.popleft()

    def _problem_of(self, alert: Alert) -> str | None:
        """Deliver one alert; return the problem, or None if it was delivered."""
        body = json_of(alert, str).encode() + b"\n"
        problem = ""
        backoff = Backoff(PAUSE_S_MIN, PAUSE_S_MAX, factor=3)
        while (left_s := self._until_s - time.monotonic()) > 0:
            try:
                self._deliver(body, min(TIMEOUT_S, left_s))
                return None
            except Exception as error:  # noqa: BLE001 -- the server need not speak HTTP; no hook ends the stream
                problem = str(error) or type(error).__name__
            if backoff.failures + 1 == ATTEMPTS:
                break
            time.sleep(backoff.next())
        return problem


def _run_command(words: Sequence[str], body: bytes, timeout_s: float) -> None:
    # Captured, because our stdout is for one document. The arguments are not shown: they may contain secrets.
    pipe = subprocess.PIPE
    with subprocess.Popen(words, stdin=pipe, stdout=pipe, stderr=pipe, start_new_session=True) as process:
        try:
            _, errors = process.communicate(body, timeout_s)
        except subprocess.TimeoutExpired:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)  # including its child processes
            raise OSError(f"{words[0]} timed out after {timeout_s:.3g} s") from None
    if process.returncode != 0:
        printed = errors.decode("utf-8", "replace").strip().splitlines()
        raise OSError(f"{words[0]} ended with {process.returncode}{': ' + printed[-1] if printed else ''}")


def _post(url: str, body: bytes, timeout_s: float) -> None:
    parts = urlsplit(url)
    headers = {"Content-Type": "application/json"}
    userinfo, _, place = parts.netloc.rpartition("@")
    if userinfo:
        headers["Authorization"] = f"Basic {b64encode(unquote_to_bytes(userinfo)).decode()}"
    request = urllib.request.Request(urlunsplit(parts._replace(netloc=place)), body, headers, method="POST")
    try:
        with _opener.open(request, timeout=timeout_s):
            pass
    except Exception as error:
        # Without path and query, which may contain credentials.
        raise OSError(f"{parts.scheme}://{place}: {str(error) or type(error).__name__}") from error


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """A redirected alert would arrive as a GET without its body, and count as delivered."""

    def redirect_request(self, *args: Any) -> None:
        return None


_opener = urllib.request.build_opener(_NoRedirects)
