"""The routes of the HTTP API, with JSON responses and errors.

Requests from foreign web pages are refused: such a page cannot name this host (`Host` would carry its own name), and
may not send JSON here without permission, which is never given.
"""

import asyncio
import socket
from collections.abc import Awaitable, Callable
from ipaddress import ip_address
from typing import Any, TypeVar

import msgspec
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from strobe import __version__
from strobe.errors import UNREADABLE, SnapshotIncomplete, SnapshotNotFound, StoreError, StrobeError, UsageError
from strobe.names import in_words
from strobe.runtime.addresses import is_loopback
from strobe.runtime.api.http_connection import HEADER_BYTES_MAX, TOO_LARGE
from strobe.runtime.api.metrics import CONTENT_TYPE, Metrics
from strobe.runtime.api.openapi import describe_api
from strobe.runtime.api.snapshot_views import detail, list_snapshots, look_up
from strobe.runtime.coordinator.live_verdicts import Judgement
from strobe.runtime.coordinator.operations import NoAnswer, NoSuchProcess, Operations
from strobe.runtime.event_log import ERROR
from strobe.runtime.messages.api_documents import (
    SYSTEM_HEADER,
    Failure,
    Index,
    LeaveRequest,
    RestartProcessRequest,
    RestoreRequest,
    SnapshotSummary,
    Status,
    StopRequest,
    TakeRequest,
)
from strobe.storage.store.snapshot_names import resolve

BODY_BYTES_MAX = 1 << 20
DISCARDED_BYTES_MAX = 16 << 20
"""A body that is too long is read up to here before it is refused: a client that is still sending reads no response."""
LAST_MAX = 10_000
_SHOWN_MAX = 20
JSON = "application/json"

Document = TypeVar("Document")
RequestHandler = Callable[[Request], Awaitable[Response]]


class Api:
    """The routes and their handlers."""

    def __init__(
        self, operations: Operations, status: Callable[[], Status], metrics: Metrics, judgement: Judgement | None
    ) -> None:
        self.operations = operations
        self.coordinator = operations.coordinator
        self._status = status
        self._metrics = metrics
        self._judgement = judgement
        self._description = msgspec.json.encode(describe_api())

    def application(self, host: str) -> Starlette:
        """Return the ASGI application, to be served at `host`."""
        routes = [
            self._route("/", "GET", self._index),
            self._route("/openapi.json", "GET", self._openapi),
            self._route("/metrics", "GET", self._metric),
            self._route("/v1/status", "GET", self._get_status),
            self._route("/v1/snapshots", "GET", self._list),
            self._route("/v1/snapshots", "POST", self._take),
            self._route("/v1/snapshots/{id}", "GET", self._show),
            self._route("/v1/restore", "POST", self._restore),
            self._route("/v1/processes/{name}/leave", "POST", self._leave),
            self._route("/v1/processes/{name}/restart", "POST", self._restart),
            self._route("/v1/stop", "POST", self._stop),
        ]
        coordinator = self.coordinator
        addressee = Middleware(Addressee, system=lambda: (coordinator.identity, coordinator.store_url))
        return Starlette(
            routes=routes,
            middleware=[Middleware(RequestGuard, host=host), addressee],
            exception_handlers={HTTPException: _http_failure},
        )

    def _route(self, path: str, method: str, endpoint: RequestHandler) -> Route:
        async def answer(request: Request) -> Response:
            try:
                return await endpoint(request)
            except StrobeError as error:
                return _failure(_status_of(error), str(error))
            except HTTPException:
                raise
            except ClientDisconnect:
                return Response(status_code=400)  # the client is gone
            except Exception as error:  # noqa: BLE001 -- a bug of ours may fail one request; the others go on
                self.coordinator.log.emit("request failed", ERROR, path=path, problem=repr(error))
                return _failure(500, f"this is a bug in Strobe: {error!r}")

        return Route(path, answer, methods=[method])

    async def _index(self, request: Request) -> Response:
        paths = [f"{method} {path}" for path, methods in describe_api()["paths"].items() for method in methods]
        return _answer(Index(__version__, self.coordinator.store_url, [path.upper()[:4] + path[4:] for path in paths]))

    async def _openapi(self, request: Request) -> Response:
        return Response(self._description, media_type=JSON)

    async def _metric(self, request: Request) -> Response:
        return Response(self._metrics.text(), headers={"Content-Type": CONTENT_TYPE})

    async def _get_status(self, request: Request) -> Response:
        return _answer(self._status())

    async def _list(self, request: Request) -> Response:
        self.operations.check_started()
        last = _last(request.query_params.get("last", "100"))
        state, url = self.coordinator.state, self.coordinator.store_url
        listed = look_up(state, list(state.committed)[-last:])
        found = await asyncio.to_thread(list_snapshots, url, listed)
        self._add_verdicts(found.snapshots)
        return _answer(found)

    async def _show(self, request: Request) -> Response:
        self.operations.check_started()
        state = self.coordinator.state
        listed = look_up(state, [resolve(state, request.path_params["id"])])
        found = await asyncio.to_thread(detail, listed)
        self._add_verdicts([found.summary])
        return _answer(found)

    def _add_verdicts(self, snapshots: list[SnapshotSummary]) -> None:
        if self._judgement is not None:
            for snapshot in snapshots:
                snapshot.verdicts = self._judgement.of(snapshot.id)

    async def _take(self, request: Request) -> Response:
        wanted = await _body(request, TakeRequest)
        return _answer(await self.operations.take(wanted), 200 if wanted.wait else 202)

    async def _restore(self, request: Request) -> Response:
        return _answer(await self.operations.restore(await _body(request, RestoreRequest)))

    async def _leave(self, request: Request) -> Response:
        await _body(request, LeaveRequest)
        return _answer(self.operations.leave(request.path_params["name"]), 202)

    async def _restart(self, request: Request) -> Response:
        await _body(request, RestartProcessRequest)
        return _answer(self.operations.restart(request.path_params["name"]), 202)

    async def _stop(self, request: Request) -> Response:
        return _answer(self.operations.stop(await _body(request, StopRequest)), 202)


class RequestGuard:
    """Refuses requests that a browser could be tricked into sending."""

    def __init__(self, app: ASGIApp, host: str) -> None:
        self._app = app
        self._local_only = is_loopback(host)
        self._names = {"localhost", host.lower(), socket.gethostname().lower()}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            refused = self._refusal(Request(scope))
            if refused is not None:
                await refused(scope, receive, send)
                return
        await self._app(scope, receive, send)

    def _refusal(self, request: Request) -> Response | None:
        if sum(len(name) + len(value) for name, value in request.headers.raw) > HEADER_BYTES_MAX:
            return _failure(TOO_LARGE, f"the headers are longer than {HEADER_BYTES_MAX} bytes")
        host = request.headers.get("host", "")
        if not self._is_ours(host):
            return _failure(421, f"the host {host!r} is not this one; use the address that the coordinator listens at")
        if request.method == "POST":
            kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
            if kind != JSON:
                return _failure(415, f"send a body of the type {JSON}, not {kind or 'none'}")
        return None

    def _is_ours(self, host: str) -> bool:
        name = host.rpartition(":")[0] if host.rpartition(":")[2].isdecimal() and not host.endswith("]") else host
        name = name.removeprefix("[").removesuffix("]").lower()
        if self._local_only:
            return is_loopback(name)
        try:
            # The attack works only if the page addresses this host by a name.
            ip_address(name)
        except ValueError:
            return name in self._names
        return True


class Addressee:
    """Refuses requests meant for another system, whose coordinator may have had this address before.

    `system` returns the identity and the URL of its store, which are known only once the store has been opened.
    """

    def __init__(self, app: ASGIApp, system: Callable[[], tuple[str, str]]) -> None:
        self._app = app
        self._system = system

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        app = self._app
        if scope["type"] == "http":
            identity, store_url = self._system()
            if Request(scope).headers.get(SYSTEM_HEADER, identity) != identity:
                problem = f"here is the coordinator of another system, of the store {store_url}"
                app = _failure(421, f"{problem}; start the right one, or give its address: --api HOST:PORT")
        await app(scope, receive, send)


def _last(text: str) -> int:
    # Python refuses to convert numbers of thousands of digits.
    if text.isascii() and text.isdecimal() and len(text) <= len(str(LAST_MAX)) and 0 < int(text) <= LAST_MAX:
        return int(text)
    shown = text if len(text) <= _SHOWN_MAX else f"{text[:_SHOWN_MAX]}..."
    raise UsageError(f"last = {shown!r} makes no sense; give a number from 1 to {LAST_MAX}")


async def _body(request: Request, kind: type[Document]) -> Document:
    """Return the body as a `kind`; an empty body means all defaults."""
    body = bytearray()
    too_long = HTTPException(413, f"the body is longer than {BODY_BYTES_MAX} bytes")
    if int(request.headers.get("content-length", "0")) > DISCARDED_BYTES_MAX:
        raise too_long
    received_bytes = 0
    async for chunk in request.stream():
        received_bytes += len(chunk)
        if received_bytes > DISCARDED_BYTES_MAX:
            raise too_long
        if received_bytes <= BODY_BYTES_MAX:
            body += chunk
    if received_bytes > BODY_BYTES_MAX:
        raise too_long
    try:
        return msgspec.json.decode(bytes(body) or b"{}", type=kind)
    except UNREADABLE as error:
        raise UsageError(f"the body is not valid: {in_words(error)}; see /openapi.json") from error


def _answer(document: Any, code: int = 200) -> Response:
    return Response(msgspec.json.encode(document), code, {"Cache-Control": "no-store"}, JSON)


def _failure(code: int, problem: str) -> Response:
    return _answer(Failure(problem), code)


async def _http_failure(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException), "registered for these only"
    problem = error.detail if error.status_code != 404 else f"there is no {request.url.path} here; see /"
    return _failure(error.status_code, problem)


def _status_of(error: StrobeError) -> int:
    if isinstance(error, SnapshotNotFound | NoSuchProcess):
        return 404
    if isinstance(error, SnapshotIncomplete):
        return 409
    if isinstance(error, NoAnswer):
        return 504
    if isinstance(error, StoreError):
        return 503
    return 400 if isinstance(error, UsageError) else 409
