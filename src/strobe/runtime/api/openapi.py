"""The OpenAPI 3.1 description of the API, generated from the structs of requests and responses."""

from typing import Any

import msgspec

from strobe import __version__
from strobe.runtime.messages.api_documents import (
    REQUESTS,
    RESPONSES,
    Accepted,
    Failure,
    Index,
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
)

_REF = "#/components/schemas/{name}"
_LAST = {
    "name": "last",
    "in": "query",
    "description": "How many of the newest.",
    "schema": {"type": "integer", "minimum": 1, "maximum": 10000, "default": 100},
}


def describe_api() -> dict[str, Any]:
    """Return the whole description."""
    _, schemas = msgspec.json.schema_components((*RESPONSES, *REQUESTS), ref_template=_REF)
    return {
        "openapi": "3.1.0",
        "info": {"title": "Strobe coordinator", "version": __version__},
        "paths": _paths(),
        "components": {"schemas": schemas},
    }


def _paths() -> dict[str, Any]:
    return {
        "/": {"get": _operation("All requests of this API.", Index)},
        "/v1/status": {"get": _operation("The current status of the system.", Status)},
        "/v1/snapshots": {
            "get": _operation("The complete snapshots.", SnapshotList, parameters=[_LAST]),
            "post": _operation("Take a snapshot.", TakeResult, TakeRequest, codes=("200", "202")),
        },
        "/v1/snapshots/{id}": {
            "get": _operation("One complete snapshot.", SnapshotDetail, parameters=[_in_path("id")]),
        },
        "/v1/restore": {"post": _operation("Roll all processes back.", RestoreStarted, RestoreRequest)},
        "/v1/processes/{name}/restart": {
            "post": _operation(
                "Have a process hand over and end.", Accepted, RestartProcessRequest, ("202",), [_in_path("name")]
            ),
        },
        "/v1/processes/{name}/leave": {
            "post": _operation("Let a process leave.", Accepted, LeaveRequest, ("202",), [_in_path("name")]),
        },
        "/v1/stop": {"post": _operation("Stop the whole system.", Accepted, StopRequest, ("202",))},
        "/metrics": {"get": {"summary": "Prometheus metrics.", "responses": {"200": _text("The metrics.")}}},
        "/openapi.json": {"get": {"summary": "This description.", "responses": {"200": _text("The description.")}}},
    }


def _operation(
    summary: str,
    answer: type,
    request: type | None = None,
    codes: tuple[str, ...] = ("200",),
    parameters: list[dict[str, Any]] | None = None,
) -> dict[str, Any]:
    responses = {code: _json(answer) for code in codes} | {"default": _json(Failure)}
    operation: dict[str, Any] = {"summary": summary, "responses": responses}
    if request is not None:
        operation["requestBody"] = {"required": False, "content": _content(request)}
    if parameters:
        operation["parameters"] = parameters
    return operation


def _json(kind: type) -> dict[str, Any]:
    return {"description": (kind.__doc__ or kind.__name__).strip(), "content": _content(kind)}


def _content(kind: type) -> dict[str, Any]:
    return {"application/json": {"schema": {"$ref": _REF.format(name=kind.__name__)}}}


def _text(description: str) -> dict[str, Any]:
    return {"description": description}


def _in_path(name: str) -> dict[str, Any]:
    return {"name": name, "in": "path", "required": True, "schema": {"type": "string"}}
