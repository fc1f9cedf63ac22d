"""The HTTP API: every answer matches the OpenAPI description, and invalid or foreign requests are refused."""

import asyncio
import errno
import json
import os
import socket
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import msgspec
import pytest
from tests.runtime.fake_nodes import PATIENCE_S, Running, both_alive, committed, running

from strobe.errors import StoreError, TransportError, UsageError
from strobe.names import RULE
from strobe.protocol.coordinator.messages import CannotRestore, InstallView, SnapshotWanted
from strobe.protocol.coordinator.restart_messages import HandOver
from strobe.protocol.coordinator.rollback import RollbackTarget
from strobe.runtime.api.client import Client, RequestRefused
from strobe.runtime.api.discovery import Discovered, announce, discover
from strobe.runtime.api.routes import RequestGuard, _status_of
from strobe.runtime.messages.control import ChannelReport, Heartbeat, SnapshotBegun, Stop
from strobe.runtime.settings import NodeSettings


class Answer:
    """An answer: status code, content type, text, and the document if it is JSON."""

    def __init__(self, code: int, headers: Any, text: str) -> None:
        self.code = code
        self.kind = headers.get("content-type", "")
        self.text = text
        self.document = json.loads(text) if self.kind == "application/json" else None


def ask(api: str, method: str, path: str, body: Any = None, **headers: str) -> Answer:
    data = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
    if data is not None and "content_type" not in headers:
        headers["content_type"] = "application/json"
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    request = urllib.request.Request(f"http://{api}{path}", data, named, method=method)
    try:
        with urllib.request.urlopen(request, timeout=20) as response:
            return Answer(response.status, response.headers, response.read().decode())
    except urllib.error.HTTPError as error:
        with error:
            return Answer(error.code, error.headers, error.read().decode())


def served(scenario: Callable[[Running, Callable[..., Any]], Any], store: Path, **settings: Any) -> None:
    """Run a scenario with a coordinator, and a function that sends requests to it from a thread."""

    async def run() -> None:
        async with running(store, http=True, **settings) as coordinator:

            async def asking(*words: Any, **headers: str) -> Answer:
                return await asyncio.to_thread(ask, coordinator.service.api, *words, **headers)

            await scenario(coordinator, asking)

    asyncio.run(run())


def matches(document: Any, schema: dict[str, Any], whole: dict[str, Any], place: str = "") -> None:
    """Assert that `document` matches `schema`; supports only those parts of JSON Schema that the description uses."""
    if "$ref" in schema:
        schema = whole["components"]["schemas"][schema["$ref"].rpartition("/")[2]]
    if "anyOf" in schema:
        assert any(_matches(document, one, whole) for one in schema["anyOf"]), (place, document)
        return
    kinds = {
        "object": dict,
        "array": list,
        "string": str,
        "integer": int,
        "number": (int, float),
        "boolean": bool,
        "null": type(None),
    }
    assert isinstance(document, kinds[schema["type"]]), (place, document, schema)
    if schema["type"] == "array":
        for at, item in enumerate(document):
            matches(item, schema.get("items", {}), whole, f"{place}[{at}]")
    if schema["type"] == "object" and "properties" in schema:
        assert set(schema.get("required", ())) <= set(document), place
        assert set(document) <= set(schema["properties"]), (place, document)
        for name, value in document.items():
            matches(value, schema["properties"][name], whole, f"{place}.{name}")
    elif schema["type"] == "object" and isinstance(schema.get("additionalProperties"), dict):
        for name, value in document.items():
            matches(value, schema["additionalProperties"], whole, f"{place}.{name}")


def _matches(document: Any, schema: dict[str, Any], whole: dict[str, Any]) -> bool:
    try:
        matches(document, schema, whole)
    except AssertionError:
        return False
    return True


def test_every_answer_matches_its_openapi_description(tmp_path: Path) -> None:
    async def scenario(coordinator: Running, asking: Callable[..., Any]) -> None:
        whole = (await asking("GET", "/openapi.json")).document
        assert whole["openapi"].startswith("3.1")
        a, b = await both_alive(coordinator)
        a.beat(position=3)
        b.beat(position=4, a=9.0)
        snapshot = await committed(coordinator, a, b)

        async def check(method: str, path: str, template: str, body: Any = None) -> Any:
            answer = await asking(method, path, body)
            responses = whole["paths"][template][method.lower()]["responses"]
            described = responses.get(str(answer.code), responses["default"])
            matches(answer.document, described["content"]["application/json"]["schema"], whole, path)
            return answer

        assert (await check("GET", "/", "/")).code == 200
        status = await check("GET", "/v1/status", "/v1/status")
        assert {process["state"] for process in status.document["processes"]} == {"running"}
        listed = await check("GET", "/v1/snapshots?last=5", "/v1/snapshots")
        assert [one["id"] for one in listed.document["snapshots"]] == [snapshot]
        shown = await check("GET", "/v1/snapshots/latest", "/v1/snapshots/{id}")
        assert shown.document["processes"]["a"]["duration_us"] == 3
        assert (await check("GET", "/v1/snapshots/1.1", "/v1/snapshots/{id}")).code == 200
        assert (await check("GET", "/v1/snapshots/nothing", "/v1/snapshots/{id}")).code == 404
        assert (await check("GET", "/v1/snapshots?last=many", "/v1/snapshots")).code == 400
        taking, *_ = await asyncio.gather(
            check("POST", "/v1/snapshots", "/v1/snapshots", {"wait": True}), a.take_part(b"x"), b.take_part(b"x")
        )
        assert (taking.code, taking.document["outcome"]) == (200, "committed")
        begun = await check("POST", "/v1/snapshots", "/v1/snapshots", {"initiators": ["b"]})
        assert (begun.code, begun.document["outcome"]) == (202, "begun")
        assert begun.document["id"] == (await check("GET", "/v1/status", "/v1/status")).document["open"][0]["id"]
        unknown = await check("POST", "/v1/snapshots", "/v1/snapshots", {"initiators": ["z"]})
        assert (unknown.code, "'z'" in unknown.document["error"]) == (404, True)
        assert (await check("POST", "/v1/restore", "/v1/restore", {"snapshot": "nothing"})).code == 404
        assert (await check("POST", "/v1/restore", "/v1/restore", {"snapshots": "?"})).code == 400
        restoring, *_ = await asyncio.gather(
            check("POST", "/v1/restore", "/v1/restore", {"snapshot": snapshot}),
            a.start_as_ordered(),
            b.start_as_ordered(),
        )
        assert (restoring.code, restoring.document["restored"]) == (200, snapshot)
        restart = "/v1/processes/{name}/restart"
        assert (await check("POST", "/v1/processes/z/restart", restart, {})).code == 404
        assert (await check("POST", "/v1/processes/b/restart", restart, {})).code == 202
        assert (await b.handle(HandOver)).process == "b"
        leave = "/v1/processes/{name}/leave"
        assert (await check("POST", "/v1/processes/z/leave", leave, {})).code == 404
        assert (await check("POST", "/v1/processes/b/leave", leave, {})).code == 202
        last = await check("POST", "/v1/processes/a/leave", leave, {})
        assert (last.code, "stop the system instead" in last.document["error"]) == (409, True)
        stopping = await check("POST", "/v1/stop", "/v1/stop", {"reason": "enough"})
        assert stopping.code == 202
        assert (await a.handle(Stop)).reason == "enough"
        await asyncio.gather(a.close(), b.close())
        assert await coordinator.coordinator.ended == 0

    served(scenario, tmp_path / "store")


def test_errors_are_documents_and_foreign_requests_are_refused(tmp_path: Path) -> None:
    async def scenario(coordinator: Running, asking: Callable[..., Any]) -> None:
        nowhere = await asking("GET", "/nowhere")
        assert (nowhere.code, nowhere.document) == (404, {"error": "there is no /nowhere here; see /"})
        assert (await asking("DELETE", "/v1/status")).code == 405
        assert (await asking("GET", "/v1/status", host="evil.example")).code == 421
        assert (await asking("GET", "/v1/status", host="localhost:1")).code == 200
        assert (await asking("POST", "/v1/stop", {}, content_type="text/plain")).code == 415
        assert (await asking("POST", "/v1/stop", "not an object")).code == 400
        for body in (b'{"reason": "\xff"}', b'{"other": ' + b"[" * 10_000, b"\x00"):
            refused = await asking("POST", "/v1/stop", body)
            assert (refused.code, "is not valid" in refused.document["error"]) == (400, True)
        assert (await asking("POST", "/v1/snapshots", {"initiators": ["x" * (1 << 20)]})).code == 413
        bad = await asking("POST", "/v1/snapshots", {"initiators": ["a/b"]})
        assert f"Expected a name ({RULE})" in str(bad.document)
        assert (await asking("POST", "/v1/snapshots", {"timeout_s": -1})).code == 400
        for number in ("0", "-1", "10001", "9" * 5000):
            refused = await asking("GET", f"/v1/snapshots?last={number}")
            assert (refused.code, "give a number from 1 to 10000" in refused.document["error"]) == (400, True)
            assert len(refused.document["error"]) < 100
        assert not coordinator.coordinator.ended.done()

    served(scenario, tmp_path / "store")


@pytest.mark.parametrize("host", ["0.0.0.0", "10.0.0.1", "API.Example"])
def test_host_names_are_compared_without_case(monkeypatch: pytest.MonkeyPatch, host: str) -> None:
    monkeypatch.setattr(socket, "gethostname", lambda: "Build-01")

    async def answer(scope: Any, receive: Any, send: Any) -> None:
        asked.append(dict(scope["headers"])[b"host"])

    async def scenario() -> None:
        async def ignore(message: Any) -> None:
            pass

        for name in (b"Build-01:7480", b"build-01", b"LOCALHOST:1", host.encode(), host.lower().encode(), b"evil"):
            scope = {"type": "http", "method": "GET", "path": "/", "headers": [(b"host", name)]}
            await RequestGuard(answer, host)(scope, ignore, ignore)

    asked: list[bytes] = []
    asyncio.run(scenario())
    assert len(asked) == 5
    assert b"evil" not in asked


def test_the_answer_names_what_a_delayed_snapshot_waits_for(tmp_path: Path) -> None:
    async def scenario(coordinator: Running, asking: Callable[..., Any]) -> None:
        await coordinator.start_node("a")
        answer = await asking("POST", "/v1/snapshots", {"timeout_s": 0.05})
        assert answer.document == {"id": None, "outcome": "wanted", "reason": "it waits for b to run"}
        late = await asking("POST", "/v1/snapshots", {"wait": True, "timeout_s": 0.05})
        assert late.code == 504

    served(scenario, tmp_path / "store")


def test_waiting_requests_get_the_reason_when_everything_is_stopped(tmp_path: Path) -> None:
    async def scenario(coordinator: Running, asking: Callable[..., Any]) -> None:
        a, b = await both_alive(coordinator)
        waiting = [asyncio.create_task(asking("POST", "/v1/snapshots", {"wait": True, "timeout_s": 20}))]
        await b.handle(SnapshotBegun)  # the other two wait for this one to end
        waiting += [
            asyncio.create_task(asking("POST", "/v1/snapshots", {"wait": True, "timeout_s": 20})),
            asyncio.create_task(asking("POST", "/v1/snapshots", {"initiators": ["a", "b"], "timeout_s": 20})),
        ]
        await coordinator.until(lambda: len(coordinator.coordinator.requests.takes) == 3)
        coordinator.coordinator.requests.restore(RollbackTarget("somewhere", False)).done.add_done_callback(
            restored.append
        )
        a.send(CannotRestore("a", 1, "its restore raises"))
        for answer in await asyncio.gather(*waiting):
            assert (answer.code, answer.document["error"].partition(": ")[0]) == (409, "everything is stopped")
            assert "its restore raises" in answer.document["error"]
        await coordinator.until(lambda: restored)
        assert "its restore raises" in str(restored[0].exception())

    restored: list[Any] = []
    served(scenario, tmp_path / "store")


def test_waiting_requests_are_answered_when_the_coordinator_ends(tmp_path: Path) -> None:
    async def scenario(coordinator: Running, asking: Callable[..., Any]) -> None:
        await both_alive(coordinator)
        waiting = asyncio.create_task(asking("POST", "/v1/snapshots", {"wait": True, "timeout_s": 20}))
        await coordinator.until(lambda: coordinator.coordinator.requests.takes)
        coordinator.service.end(0)
        answer = await waiting
        assert (answer.code, answer.document["error"]) == (
            409,
            "the coordinator ends; start it, and send the request again",
        )

    served(scenario, tmp_path / "store")


def test_E10_requests_that_timed_out_leave_no_snapshot_queued(tmp_path: Path) -> None:
    async def scenario(coordinator: Running, asking: Callable[..., Any]) -> None:
        await coordinator.start_node("a")
        request = {"wait": True, "timeout_s": 0.05}
        answers = await asyncio.gather(*(asking("POST", "/v1/snapshots", request) for _ in range(10)))
        assert {answer.code for answer in answers} == {504}
        assert "it waits for b to run); the request is withdrawn" in answers[0].document["error"]
        assert not coordinator.coordinator.lifecycle.schedule.queue

    served(scenario, tmp_path / "store")


def test_metrics_cover_snapshots_epochs_and_processes(tmp_path: Path) -> None:
    async def scenario(coordinator: Running, asking: Callable[..., Any]) -> None:
        a, b = await both_alive(coordinator)
        a.beat(position=31)
        await coordinator.until(lambda: coordinator.coordinator.members.get("a").reached == 31)
        await committed(coordinator, a, b)
        text = (await asking("GET", "/metrics")).text
        for line in (
            'strobe_snapshots_total{outcome="committed"} 1.0',
            'strobe_snapshots_total{outcome="aborted"} 0.0',
            "strobe_snapshot_duration_seconds_count 1.0",
            "strobe_state_bytes_total 10.0",
            "strobe_term 1.0",
            "strobe_epoch 1.0",
            "strobe_rollbacks_total 0.0",
            "strobe_log_position 4.0",
            "strobe_open_snapshots 0.0",
            'strobe_process_up{process="a"} 1.0',
            'strobe_process_position{process="a"} 31.0',
            'strobe_process_cpu_seconds_total{process="a"} 0.5',
            'strobe_process_memory_bytes{process="a"} 1000.0',
            'strobe_process_rejected_total{process="a",reason="garbage"} 1.0',
        ):
            assert line in text.splitlines()

    served(scenario, tmp_path / "store")


async def in_metrics(asking: Callable[..., Any], *lines: str) -> None:
    """Wait until the metrics have these lines; reports of nodes take a moment to arrive."""
    missing = {*lines}
    try:
        async with asyncio.timeout(PATIENCE_S):
            while missing := {*lines} - {*(await asking("GET", "/metrics")).text.splitlines()}:
                await asyncio.sleep(0.005)
    except TimeoutError:
        pytest.fail(f"the metrics do not have {sorted(missing)}")


def test_metrics_have_the_counters_of_each_process_and_channel(tmp_path: Path) -> None:
    """All numbers differ, so that none can be mistaken for another."""

    async def scenario(coordinator: Running, asking: Callable[..., Any]) -> None:
        a, b = await both_alive(coordinator)
        forth = ChannelReport(11, backlog_bytes=12, waiting_s=1.25, reconnects=13)
        a.send(Heartbeat("a", 1, 14, 0.5, 15, {"a->b": forth}, {"b->a": 16}, {}, 17, 18))
        back = ChannelReport(21, backlog_bytes=22, waiting_s=2.25, reconnects=23)
        b.send(Heartbeat("b", 1, 24, 0.5, 25, {"b->a": back}, {"a->b": 26}, {}, 27, 28))
        expected = [
            'strobe_process_backlog_bytes{process="%s"} %d2.0',
            'strobe_process_memory_bytes{process="%s"} %d5.0',
            'strobe_process_recording_bytes{process="%s"} %d7.0',
            'strobe_process_spilled_bytes{process="%s"} %d8.0',
        ]
        lines = [line % process for line in expected for process in (("a", 1), ("b", 2))]
        expected = [
            'strobe_channel_sent_total{channel="%s"} %d1.0',
            'strobe_channel_waiting_seconds{channel="%s"} %d.25',
            'strobe_channel_reconnects_total{channel="%s"} %d3.0',
        ]
        lines += [line % channel for line in expected for channel in (("a->b", 1), ("b->a", 2))]
        lines += [
            'strobe_channel_received_total{channel="a->b"} 26.0',
            'strobe_channel_received_total{channel="b->a"} 16.0',
        ]
        await in_metrics(asking, *lines)

    served(scenario, tmp_path / "store")


def test_metrics_count_credit_deadlocks(tmp_path: Path) -> None:
    async def scenario(coordinator: Running, asking: Callable[..., Any]) -> None:
        a, b = await both_alive(coordinator)
        await in_metrics(asking, "strobe_credit_deadlocks 0.0")
        a.beat(b=5.0)
        b.beat(a=6.0)
        await coordinator.until(lambda: all(member.heartbeat for member in coordinator.coordinator.members))
        a.beat(b=9.0)
        b.beat(a=9.0)
        await in_metrics(asking, "strobe_credit_deadlocks 1.0", "strobe_store_trouble 0.0")

    served(scenario, tmp_path / "store")


def test_metrics_show_whether_the_store_can_be_used(tmp_path: Path) -> None:
    async def scenario(coordinator: Running, asking: Callable[..., Any]) -> None:
        await both_alive(coordinator)
        await in_metrics(asking, "strobe_store_trouble 0.0")
        full = OSError(errno.ENOSPC, "No space left on device")
        store = coordinator.coordinator.store.log.store
        store.on_step = Mock(side_effect=full)
        coordinator.coordinator.handle(SnapshotWanted())
        await in_metrics(asking, "strobe_store_trouble 1.0", "strobe_credit_deadlocks 0.0")
        store.on_step = Mock()
        await in_metrics(asking, "strobe_store_trouble 0.0")

    served(scenario, tmp_path / "store")


def test_metrics_count_connections_that_the_coordinator_rejects(tmp_path: Path) -> None:
    async def scenario(coordinator: Running, asking: Callable[..., Any]) -> None:
        await in_metrics(asking, "strobe_rejected_total 0.0")
        for count in (1, 2):
            stranger = await coordinator.node("a", silent=True)
            stranger.writer.write(b"\x1b\xeee")
            stranger.writer.write_eof()
            await in_metrics(asking, f"strobe_rejected_total {count}.0")

    served(scenario, tmp_path / "store")


def test_commands_find_the_coordinator_through_its_store(tmp_path: Path) -> None:
    async def scenario(coordinator: Running, asking: Callable[..., Any]) -> None:
        a, b = await both_alive(coordinator)
        client = await asyncio.to_thread(Client.of_store, str(tmp_path / "store"))
        assert discover(str(tmp_path / "store")).listen == coordinator.service.listen
        taken, *_ = await asyncio.gather(asyncio.to_thread(client.take), a.take_part(), b.take_part())
        assert taken.outcome == "committed"
        assert (await asyncio.to_thread(client.status)).committed == 1
        assert (await asyncio.to_thread(client.snapshot, "latest")).summary.id == taken.id
        assert (await asyncio.to_thread(client.snapshots)).total == 1
        with pytest.raises(UsageError, match="there is no process 'z'"):
            await asyncio.to_thread(client.leave, "z")
        await a.close()
        with pytest.raises(RequestRefused, match="process a is not running"):
            await asyncio.to_thread(client.leave, "a")
        returned = await coordinator.node("a", epoch=1)
        await returned.handle(InstallView)

    served(scenario, tmp_path / "store")
    with pytest.raises(TransportError, match="no coordinator runs for the store"):
        Client.of_store(str(tmp_path / "store"))
    (tmp_path / "store").rename(tmp_path / "elsewhere")
    with pytest.raises(TransportError, match=r"there is no store at .* at the moment: it was moved away"):
        Client.of_store(str(tmp_path / "store"))


@pytest.mark.parametrize("version", ["this", "earlier"])
def test_a_stale_address_file_never_leads_to_another_system(tmp_path: Path, version: str) -> None:
    """A killed coordinator leaves its address file; the coordinator of another system may have that address by now."""
    mine, others = str(tmp_path / "mine"), str(tmp_path / "others")

    async def leave_address_file() -> Discovered:
        async with running(tmp_path / "mine", http=True) as coordinator:
            found = discover(mine)
            assert found.system == coordinator.coordinator.identity
            return found

    async def scenario() -> None:
        left = await leave_address_file()
        async with running(tmp_path / "others", http=True) as other:
            a, b = await both_alive(other)
            taken = await committed(other, a, b)
            system = left.system if version == "this" else ""
            announce(mine, msgspec.structs.replace(left, api=other.service.api, system=system))
            client = Client.of_store(mine)
            for call in (
                client.status,
                client.take,
                client.stop,
                client.metrics,
                lambda: client.restore(taken),
                lambda: client.leave("a"),
                lambda: client.restart("a"),
            ):
                with pytest.raises(
                    TransportError, match=f"of another system, of the store {others}; start the right one"
                ):
                    await asyncio.to_thread(call)
            assert not other.logged("rollback")
            assert (await asyncio.to_thread(Client.of_store(others).status)).committed == 1
            async with running(tmp_path / "mine"):
                assert discover(mine).pid == os.getpid()

    asyncio.run(scenario())


def test_an_address_without_a_coordinator_is_reported() -> None:
    with pytest.raises(TransportError, match="no coordinator answers at"):
        Client("127.0.0.1:1").status()


def test_an_unreadable_store_gives_status_503() -> None:
    assert _status_of(StoreError("/data/shop", "is away")) == 503


def test_E11_a_process_that_records_a_trace_cannot_be_restarted(tmp_path: Path) -> None:
    async def scenario(coordinator: Running, asking: Callable[..., Any]) -> None:
        await both_alive(coordinator)
        refused = await asking("POST", "/v1/processes/a/restart", {})
        assert (refused.code, "it records a trace" in refused.document["error"]) == (409, True)

    served(scenario, tmp_path / "store", node=NodeSettings(trace="ordinals"))
