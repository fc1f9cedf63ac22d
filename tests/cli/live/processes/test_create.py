"""Only `--create` creates a store. Every other command leaves a path without a store unchanged."""

import pytest
from tests.cli.command_line import BANK, refused, run
from tests.storage.files.test_guard import everything

from strobe.storage import Store

PLACES = {"absent": "does not exist", "empty": "is empty", "headless": "holds no store (no strobe.json)"}
COMMANDS = {
    "list": ("snapshot", "list"),
    "show": ("snapshot", "show", "latest"),
    "verify": ("snapshot", "verify", "--all"),
    "diff": ("snapshot", "diff", "1", "2"),
    "predicates": ("snapshot", "predicates", "--system", BANK),
    "pin": ("snapshot", "pin", "latest"),
    "remove": ("snapshot", "remove", "latest"),
    "collect": ("snapshot", "collect"),
    "take": ("snapshot", "take"),
    "restore": ("restore", "latest"),
    "leave": ("leave", "a"),
}


@pytest.fixture(params=PLACES)
def place(request, tmp_path):
    """A path without a store, and the error text for it."""
    path = tmp_path / "data" / request.param
    if request.param != "absent":
        path.mkdir(parents=True)
    if request.param == "headless":
        (path / "log").mkdir()
    return path, PLACES[request.param]


@pytest.mark.parametrize("command", ["up", "coordinator"])
def test_without_create_a_system_does_not_start_without_a_store(place, tmp_path, command):
    path, expected = place
    before = everything(tmp_path)
    result = run(command, BANK, "--store", path)
    refused(result, f"store {path}: {expected}; check the path", "If this is the first start of the system")
    assert result.err.rstrip().endswith(f"strobe {command} {BANK} --store {path} --create")
    assert ("or mount the file system" in result.error) == (expected == "is empty")
    assert everything(tmp_path) == before


def test_creating_a_store_is_not_offered_in_a_used_directory(tmp_path):
    (tmp_path / "letters").touch()
    result = run("up", BANK, "--store", tmp_path)
    refused(result, "holds no store (no strobe.json); check the path")
    refused(run("up", BANK, "--store", tmp_path, "--create"), "is no store and is not empty (it holds letters)")
    assert sorted(everything(tmp_path)) == ["letters"]


@pytest.mark.parametrize("command", COMMANDS)
def test_other_commands_create_no_store(place, tmp_path, command):
    path, _ = place
    before = everything(tmp_path)
    assert run(*COMMANDS[command], "--store", path).code in (2, 3)
    assert everything(tmp_path) == before


def test_create_and_store_id_cannot_be_combined(tmp_path):
    result = run("coordinator", BANK, "--store", tmp_path / "store", "--create", "--store-id", "5a0cf9d2")
    refused(result, "--create makes a new store, and --store-id waits for an existing one")
    assert everything(tmp_path) == {}


def test_create_opens_a_store_that_is_there(tmp_path, monkeypatch):
    store = Store.create(tmp_path / "store")
    given = []
    monkeypatch.setattr("strobe.cli.live.up.Supervisor", lambda *_, identity, **__: given.append(identity) or 1 / 0)
    for words in ((), ("--create",)):
        run("up", BANK, "--store", store.url, *words)
    assert given == [store.header.store] * 2
