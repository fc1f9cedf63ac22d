"""Alerts: a command or a webhook that is told of every verdict that does not hold, and of what is quarantined (D2).

An alert is one JSON object: on the standard input of the command, or as the body of a POST. It is sent after its
verdict is written, and **at least once**: a pipeline that is killed between the two sends it again. Its `id` is always
the same for the same finding, so that whoever receives it can tell. A hook that fails is tried again a few times, and
then given up for this alert, with a line in the log; it never ends the stream, and the tables have everything.
"""

import logging
import shlex
import shutil
import subprocess
import time
import urllib.request
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any
from urllib.parse import urlsplit

import msgspec
from blake3 import blake3

from strobe.errors import UsageError

ATTEMPTS = 3
PAUSE_S = 0.5
TIMEOUT_S = 10.0
FAILED_MAX = 3
"""After so many alerts in a row that could not be delivered, the rest of the batch is given up: the hook is down."""

Deliver = Callable[[bytes], None]
"""Hands over one alert; raises where that fails."""

log = logging.getLogger("strobe.pipeline")


class Alert(msgspec.Struct, frozen=True, omit_defaults=True):
    """A verdict that does not hold (`check` and `verdict` say which), or a file in quarantine (`uri`)."""

    id: str
    store: str
    reason: str | None
    batch_id: int
    snapshot_id: str | None = None
    check: str | None = None
    verdict: str | None = None
    uri: str | None = None


def alert_id(*parts: str | None) -> str:
    """Return an id that is the same whenever it is made of the same parts."""
    return blake3(msgspec.json.encode(parts)).hexdigest()[:32]


class AlertHooks(msgspec.Struct, frozen=True):
    """Where alerts go; plain data. `command` is the words of a command, which no shell looks at."""

    command: tuple[str, ...] = ()
    webhook: str | None = None

    def __bool__(self) -> bool:
        return bool(self.command or self.webhook)

    def send(self, alerts: Iterable[Alert]) -> int:
        """Send every alert to every hook; return how many deliveries were given up."""
        alerts = list(alerts)
        hooks: list[Deliver] = []
        if self.command:
            hooks.append(partial(_run_command, self.command))
        if self.webhook:
            hooks.append(partial(_post, self.webhook))
        return sum(_send_all(deliver, alerts) for deliver in hooks)


def alert_hooks(command: str | None, webhook: str | None) -> AlertHooks:
    """Return the hooks of a command line; raise UsageError for a command that is not there, or no address."""
    words = _words(command) if command is not None else ()
    if webhook is not None and not _is_address(webhook):
        raise UsageError(f"--alert-webhook {webhook} is not an address; give one like http://127.0.0.1:8080/alerts")
    return AlertHooks(words, webhook)


def _is_address(url: str) -> bool:
    try:
        parts = urlsplit(url)
        plain = url.isascii() and url.isprintable() and " " not in url
        return plain and parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:  # a port that is none
        return False


def _words(command: str) -> tuple[str, ...]:
    try:
        words = tuple(shlex.split(command))
    except ValueError as error:
        raise UsageError(f"--alert-command cannot be taken apart into words ({error}): {command}") from error
    if not words or shutil.which(words[0]) is None:
        raise UsageError(f"--alert-command: there is no program {words[0] if words else ''!r} that can be run")
    return words


def _send_all(deliver: Deliver, alerts: Sequence[Alert]) -> int:
    failed = in_a_row = 0
    for place, alert in enumerate(alerts):
        if _delivered(deliver, alert):
            in_a_row = 0
            continue
        failed += 1
        in_a_row += 1
        if in_a_row == FAILED_MAX and place + 1 < len(alerts):
            left = len(alerts) - place - 1
            log.warning("the alert hook fails: %d more alerts of this batch are not sent; the tables have them", left)
            return failed + left
    return failed


def _delivered(deliver: Deliver, alert: Alert) -> bool:
    body = msgspec.json.encode(alert) + b"\n"
    problem = ""
    for attempt in range(ATTEMPTS):
        time.sleep(PAUSE_S * (2**attempt - 1))
        try:
            deliver(body)
            return True
        except Exception as error:  # noqa: BLE001 -- what answers need not speak HTTP; no hook ends the stream
            problem = str(error) or type(error).__name__
    log.warning("alert %s was not delivered after %d attempts: %s", alert.id, ATTEMPTS, problem)
    return False


def _run_command(words: Sequence[str], body: bytes) -> None:
    # Its output would mix with ours, where stdout is for one document.
    done = subprocess.run(words, input=body, capture_output=True, timeout=TIMEOUT_S, check=False)
    if done.returncode != 0:
        said = done.stderr.decode("utf-8", "replace").strip().splitlines()
        raise OSError(f"{words[0]} ended with {done.returncode}{': ' + said[-1] if said else ''}")


def _post(url: str, body: bytes) -> None:
    headers = {"Content-Type": "application/json"}
    with _opener.open(urllib.request.Request(url, body, headers, method="POST"), timeout=TIMEOUT_S):
        pass


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """Elsewhere, an alert would arrive as a GET without its body, and count as delivered."""

    def redirect_request(self, *args: Any) -> None:
        return None


_opener = urllib.request.build_opener(_NoRedirects)
