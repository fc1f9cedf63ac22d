"""Something else listens where a coordinator is expected: every command ends, and reports that (exit code 3)."""

import asyncio
import os

import pytest
from tests.cli.command_line import BANK, run, run_apart
from tests.support.strangers_at_a_port import stranger

from strobe import Node
from strobe.errors import NotACoordinator, TransportError
from strobe.process import Process, System
from strobe.runtime.api import client
from strobe.runtime.api.discovery import Discovered, announce
from strobe.runtime.messages.control import Heartbeat
from strobe.runtime.node.coordinator_link import FIRST_ANSWER_FACTOR, UNANSWERED_MAX, CoordinatorLink
from strobe.storage import Store

COMMANDS = {
    "take": ("snapshot", "take", "--timeout", "0.1"),
    "restore": ("restore", "latest", "--timeout", "0.1"),
    "leave": ("leave", "a"),
}


@pytest.mark.parametrize("kind", ["web", "page", "echo"])
@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_reports_that_something_else_answers(command, kind):
    with stranger(kind) as api:
        result = run(*COMMANDS[command], "--api", api)
    assert result.code == 3, result
    assert f"what answers at {api} is not a coordinator of Strobe: its answer is " in result.error


@pytest.mark.parametrize("command", ["take", "restore"])
def test_a_command_does_not_wait_longer_than_its_timeout(command, monkeypatch):
    monkeypatch.setattr(client, "GRACE_S", 0.1)
    with stranger("silent") as api:
        result = run(*COMMANDS[command], "--api", api)
    assert result.code == 3, result
    assert f"what listens at {api} did not answer within 0.2 s: the coordinator hangs, or it is not one" in result.error


def test_an_old_address_file_of_a_store_may_lead_to_something_else(tmp_path):
    store = Store.create(tmp_path / "store")
    with stranger("page") as api:
        announce(store.url, Discovered("127.0.0.1:1", api, os.getpid(), 1, store.header.store))
        result = run(*COMMANDS["leave"], "--store", store.url)
    assert result.code == 3, result
    assert f"what answers at {api} is not a coordinator of Strobe" in result.error


@pytest.mark.parametrize(
    ("kind", "problem"),
    [
        ("web", "it is a web server; a coordinator has one port for nodes, and another one for its API; give the"),
        ("echo", "it sent a control message of the unknown type 'Register'; give the coordinator's address for nodes"),
    ],
)
def test_a_node_reports_that_something_else_answers(kind, problem):
    with stranger(kind) as address:
        result = run_apart("node", BANK, "--name", "a", "--coordinator", address)
    assert result.code == 3, result
    assert f"what answers at {address} is not a coordinator of Strobe: {problem}" in result.err


@pytest.mark.parametrize("kind", ["web", "page", "echo"])
def test_a_program_with_its_own_loop_cannot_connect_to_something_else(kind):
    async def scenario(address):
        node = Node.connect(
            System({"a": Process()}, []), name="a", capture=lambda: b"", restore=print, coordinator=address
        )
        with pytest.raises(TransportError, match=f"what answers at {address} is not a coordinator of Strobe") as raised:
            async with node:
                raise AssertionError("it has connected")
        assert raised.value.exit_code == 3

    with stranger(kind) as address:
        asyncio.run(scenario(address))


@pytest.mark.parametrize("patient", [False, True])
def test_a_node_does_not_wait_forever_for_a_first_answer(patient):
    """A node of `strobe up` does: its coordinator was just started, and may be slow."""
    beat = Heartbeat("a", 0, 0, 0.0, 0, {}, {}, {})
    allowed = UNANSWERED_MAX * FIRST_ANSWER_FACTOR

    async def scenario(address):
        host, _, port = address.partition(":")
        errors = []
        link = CoordinatorLink((host, int(port)), lambda: beat, print, errors.append, patient=patient)
        link.start()
        while not link.connected:
            await asyncio.sleep(0)
        assert [link.send_heartbeat(beat) for _ in range(allowed + 1)] == [True] * allowed + [False]
        await link.close()
        return errors

    with stranger("silent") as address:
        errors = asyncio.run(scenario(address))
    assert [type(error) for error in errors] == ([] if patient else [NotACoordinator])
