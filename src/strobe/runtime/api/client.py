"""The HTTP client of a running coordinator, for commands; one call at a time."""

import time
import urllib.error
import urllib.request
from http.client import BadStatusLine, HTTPException, LineTooLong, RemoteDisconnected, UnknownProtocol
from typing import Any, TypeVar
from urllib.parse import quote

import msgspec

from strobe.backoff import Backoff
from strobe.errors import UNREADABLE, NotACoordinator, StrobeError, TransportError, UsageError
from strobe.runtime.api.discovery import Discovered, discover
from strobe.runtime.messages.api_documents import (
    SYSTEM_HEADER,
    Accepted,
    Failure,
    LeaveRequest,
    RestartProcessRequest,
    RestoreRequest,
    RestoreStarted,
    SnapshotDetail,
    SnapshotList,
    Status,
    StopRequest,
    TakeRequest,
    TakeResult,
    checked_timeout,
)
from strobe.storage import Store

Document = TypeVar("Document")
GRACE_S = 5.0
"""Added to the coordinator's own timeout, so that its timeout response can arrive."""


ASK_S_MAX = 1.0
ATTEMPTS_MAX = 5
RETRY_S_MIN = 0.05
RETRY_S_MAX = 0.4


def running_for(store: str) -> Discovered | None:
    """Return the address of the coordinator that runs for `store` and responds, or None."""
    try:
        found = discover(store)
        Client.at(found, store, ASK_S_MAX).status()
    except StrobeError:
        return None
    return found


class RequestRefused(StrobeError):
    """The coordinator refused the request, with a reason."""


class Client:
    """The API of the coordinator at `api` (host:port). With `system`, the coordinator of any other system refuses."""

    def __init__(self, api: str, timeout_s: float = 10.0, system: str = "") -> None:
        self.api = api
        self._timeout_s = timeout_s
        self._headers = {SYSTEM_HEADER: system} if system else {}
        # Never through a proxy: the coordinator is nearby.
        self._opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))

    @classmethod
    def of_store(cls, store: str, timeout_s: float = 10.0) -> "Client":
        """Return a client for the coordinator that runs for `store`; TransportError if there is none."""
        return cls.at(discover(store), store, timeout_s)

    @classmethod
    def at(cls, found: Discovered, store: str, timeout_s: float) -> "Client":
        """Return a client for the coordinator of `store` at the discovered address."""
        # The address file of an earlier version does not contain the identity; the store does.
        return cls(found.api, timeout_s, found.system or Store.open(store).header.store)

    def status(self) -> Status:
        return self._get("/v1/status", Status)

    def snapshots(self, last: int = 100) -> SnapshotList:
        return self._get(f"/v1/snapshots?last={last}", SnapshotList)

    def snapshot(self, snapshot: str) -> SnapshotDetail:
        return self._get(f"/v1/snapshots/{quote(snapshot, safe='')}", SnapshotDetail)

    def take(self, wait: bool = True, initiators: tuple[str, ...] = (), timeout_s: float = 60.0) -> TakeResult:
        """Take a snapshot; with `wait`, return its outcome."""
        request = TakeRequest(wait, initiators, checked_timeout(timeout_s))
        return self._post("/v1/snapshots", request, TakeResult, timeout_s + GRACE_S)

    def restore(self, snapshot: str | None = "latest", fork: bool = False, timeout_s: float = 60.0) -> RestoreStarted:
        """Roll back all processes; returns when the new epoch has started."""
        request = RestoreRequest(snapshot, fork, checked_timeout(timeout_s))
        return self._post("/v1/restore", request, RestoreStarted, timeout_s + GRACE_S)

    def leave(self, process: str) -> Accepted:
        """Let `process` leave the system."""
        return self._post(f"/v1/processes/{quote(process, safe='')}/leave", LeaveRequest(), Accepted)

    def restart(self, process: str) -> Accepted:
        """Have `process` hand over to its successor and end; its supervisor starts that."""
        return self._post(f"/v1/processes/{quote(process, safe='')}/restart", RestartProcessRequest(), Accepted)

    def stop(self, reason: str = "the system was stopped", timeout_s: float | None = None) -> Accepted:
        """Stop every node, then the coordinator; TransportError if it does not respond in time."""
        return self._post("/v1/stop", StopRequest(reason), Accepted, timeout_s)

    def metrics(self) -> str:
        return self._call(self._request("/metrics"), self._timeout_s).decode()

    def _request(self, path: str, body: bytes | None = None) -> urllib.request.Request:
        kind = {"Content-Type": "application/json"} if body is not None else {}
        return urllib.request.Request(f"http://{self.api}{path}", body, self._headers | kind)

    def _get(self, path: str, kind: type[Document]) -> Document:
        return self._decode(self._call(self._request(path), self._timeout_s), kind)

    def _post(self, path: str, document: Any, kind: type[Document], timeout_s: float | None = None) -> Document:
        request = self._request(path, msgspec.json.encode(document))
        return self._decode(self._call(request, timeout_s or self._timeout_s), kind)

    def _call(self, request: urllib.request.Request, timeout_s: float) -> bytes:
        try:
            return self._answer(request, timeout_s)
        except urllib.error.HTTPError as error:
            with error:
                raise self._refusal(error.code, error.read()) from None
        except TimeoutError as error:
            raise self._silent(timeout_s) from error
        except RemoteDisconnected as error:
            raise self._absent(error) from error
        except (BadStatusLine, LineTooLong, UnknownProtocol) as error:
            raise NotACoordinator(self.api, "its answer is no HTTP; give the address of the API: --api") from error
        except (OSError, HTTPException, ValueError) as error:  # ValueError: not a valid host name
            if isinstance(getattr(error, "reason", None), TimeoutError):
                raise self._silent(timeout_s) from error
            raise self._absent(error) from error

    def _silent(self, timeout_s: float) -> TransportError:
        return TransportError(
            f"what listens at {self.api} did not answer within {timeout_s:g} s: the coordinator hangs, or it is not one"
        )

    def _absent(self, error: Exception) -> TransportError:
        problem = getattr(error, "reason", None) or error
        return TransportError(
            f"no coordinator answers at {self.api} ({problem}); start one with `strobe coordinator SYSTEM`"
        )

    def _refusal(self, code: int, body: bytes) -> StrobeError:
        try:
            problem = msgspec.json.decode(body, type=Failure).error
        except UNREADABLE:
            return NotACoordinator(self.api, f"its answer is HTTP status {code} without a reason; check the address")
        if code in (400, 404):
            return UsageError(problem)
        return TransportError(problem) if code in (421, 503, 504) else RequestRefused(problem)

    def _answer(self, request: urllib.request.Request, timeout_s: float) -> bytes:
        """Return the response, and retry a GET whose connection was closed.

        With too many connections, a coordinator may close one whose request it has not read. A GET changes nothing.
        """
        attempts = ATTEMPTS_MAX if request.get_method() == "GET" else 1
        backoff = Backoff(RETRY_S_MIN, RETRY_S_MAX)
        while True:
            try:
                with self._opener.open(request, timeout=timeout_s) as response:
                    body: bytes = response.read()
                    return body
            except OSError as error:
                if backoff.failures + 1 == attempts or not _is_closed(error):
                    raise
            time.sleep(backoff.next())

    def _decode(self, body: bytes, kind: type[Document]) -> Document:
        try:
            return msgspec.json.decode(body, type=kind)
        except UNREADABLE as error:
            raise NotACoordinator(
                self.api, f"its answer is another document, or of another version ({error})"
            ) from error


def _is_closed(error: OSError) -> bool:
    """Return whether the peer closed the connection; urllib wraps errors that occur while it sends."""
    return isinstance(getattr(error, "reason", error), ConnectionResetError | BrokenPipeError)
