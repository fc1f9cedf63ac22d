"""`strobe store repair`: what is wrong with a log is said, and a bad entry is fenced off, never silently."""

import json
import shutil
from pathlib import Path

import pytest
from tests.cli.command_line import BANK, refused, run, run_apart
from tests.storage.random_logs import checkpointed_store
from tests.storage.test_fences import POISON, flip, poison

from strobe.storage import Store
from strobe.storage.entries import entry_name


def entries(store):
    return len(list((store / "log").iterdir()))


def test_a_good_log_is_said_to_be_good(store):
    result = run("store", "repair", store)
    assert (result.code, result.out) == (0, f"{entries(store)} entries checked, 0 bad\n")
    assert run("store", "repair", store, "--json").document["findings"] == []


def test_what_is_wrong_is_said_and_nothing_is_changed(store):
    flip(store / entry_name(1))
    before = entries(store)
    result = run("store", "repair", store)
    assert result.code == 1
    assert f"{entry_name(1)}: its bytes do not match its checksum" in result.out
    assert "lost without it" in result.out
    assert f"strobe store repair {store} --fence 1" in result.out
    assert entries(store) == before


def test_a_bad_entry_is_fenced_off_after_a_confirmation(store):
    position = poison(Store.open(store))
    assert "strobe store repair" in run("snapshot", "list", "--store", store).error
    assert "confirm by --yes" in run("store", "repair", store, "--fence", str(position)).err
    assert run("snapshot", "list", "--store", store).code != 0
    result = run("store", "repair", store, "--fence", str(position), "--yes", "--reason", "a node has lied")
    assert result.code == 0, result
    assert POISON in result.err
    assert "fenced off: it has no effect" in result.out
    fence = json.loads((store / entry_name(position + 1)).read_bytes())["entry"]
    assert (fence["type"], fence["position"], fence["reason"]) == ("fence", position, "a node has lied")
    assert run("snapshot", "list", "--store", store).code == 0
    assert run("snapshot", "verify", "--store", store).code == 0


@pytest.mark.parametrize("kept", [0, 0.5])
def test_missing_newest_entries_are_reported(store, kept):
    log = sorted((store / "log").iterdir())
    for path in log[int(len(log) * kept) :]:
        path.unlink()
    result = run("store", "repair", store)
    assert result.code == 1
    assert "the newest entries are missing; restore them from a copy" in " ".join(result.out.split())
    assert run("store", "repair", store, "--json").document["missing"]
    verified = run("snapshot", "verify", "--all", "--store", store)
    assert verified.code == 1
    assert "newest entries are lost" in " ".join(verified.out.split())


def test_a_coordinator_does_not_start_on_a_store_without_its_log(store):
    shutil.rmtree(store / "log")
    started = run_apart("coordinator", BANK, "--store", store, "--listen", "127.0.0.1:0", "--api", "127.0.0.1:0")
    assert started.code == 1, started
    assert "the newest entries are missing" in " ".join(started.err.split())
    assert not list((store / "log").glob("*"))


def test_a_good_entry_is_not_fenced_off(store):
    before = entries(store)
    refused(run("store", "repair", store, "--fence", "1", "--yes"), "is valid, and stays in effect")
    refused(run("store", "repair", store, "--fence", "999", "--yes"), "there is no entry 999")
    assert entries(store) == before


def test_a_poisoned_system_starts_again_after_the_repair(tmp_path: Path):
    store = Path(Store.create(tmp_path / "store").url)
    up = ["up", BANK, "--store", store, "--for", "2", "--interval", "0.2"]
    up += ["--set", "coordinator.listen=127.0.0.1:0", "--set", "coordinator.api=127.0.0.1:0"]
    assert run_apart(*up).code == 0
    position = poison(Store.open(store))
    failed = run_apart(*up)
    assert failed.code not in (0, 70), failed
    assert "strobe store repair" in " ".join(failed.err.split())
    assert run_apart("store", "repair", store).code == 1
    assert run_apart("store", "repair", store, "--fence", str(position), "--yes").code == 0
    before = len(Store.open(store).list())
    assert run_apart(*up).code == 0
    assert len(Store.open(store).list()) > before


@pytest.mark.parametrize("link", ["run", "run/log", "run/log/coordinator.log"])
def test_up_writes_no_log_through_a_symbolic_link(tmp_path: Path, link: str):
    store = Path(Store.create(tmp_path / "store").url)
    outside = tmp_path / "outside"
    if link.endswith(".log"):
        outside.write_bytes(b"")
    else:
        outside.mkdir()
    (store / link).parent.mkdir(parents=True, exist_ok=True)
    (store / link).symlink_to(outside)
    failed = run_apart("up", BANK, "--store", store, "--for", "1")
    assert failed.code in (1, 3), failed
    assert "is a symbolic link" in " ".join(failed.err.split())
    assert outside.read_bytes() == b"" if outside.is_file() else list(outside.iterdir()) == []


@pytest.fixture
def checkpointed(tmp_path):
    """A store of 40 entries with checkpoints, the newest at 35."""
    return checkpointed_store(tmp_path / "checkpointed", 3, 40, 7)


def test_entries_before_a_checkpoint_are_checked_too(checkpointed):
    assert "40 entries checked, 0 bad" in run("store", "repair", checkpointed).out
    flip(checkpointed / entry_name(10))
    result = run("store", "repair", checkpointed)
    assert result.code == 1
    assert f"{entry_name(10)}: its bytes do not match its checksum" in result.out
    assert "40 entries checked, 1 bad" in result.out
    assert "--fence" not in result.out


def test_entries_that_are_absent_before_a_checkpoint_are_counted(checkpointed):
    for position in (3, 4, 5):
        (checkpointed / entry_name(position)).unlink()
    result = run("store", "repair", checkpointed)
    assert result.code == 0
    assert "37 entries checked, 0 bad" in result.out
    assert "3 entries before the checkpoint at 35 absent" in result.out


@pytest.mark.parametrize("directory", ["log", "blobs", "checkpoints", "tmp"])
def test_a_directory_that_is_a_link_ends_the_repair_at_once(store, directory):
    """It was read again for each position, without end."""
    (store / directory).rename(store.with_name("elsewhere"))
    (store / directory).symlink_to(store.with_name("elsewhere"))
    result = run("store", "repair", store)
    assert result.code == 1
    assert f"{directory}: is a symbolic link" in " ".join(result.err.split())
