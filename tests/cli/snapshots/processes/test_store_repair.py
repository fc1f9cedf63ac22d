"""`strobe store repair`: it reports what is wrong with a log, and fences off a bad entry after a confirmation."""

import json
import os
import shutil
from pathlib import Path

import pytest
from tests.cli.command_line import BANK, refused, run, run_apart
from tests.storage.entries.long.test_fences import POISON, flip, poison
from tests.storage.random_logs import checkpointed_store

from strobe.storage import Store
from strobe.storage.entries.log_file import entry_name


def entries(store):
    return len(list((store / "log").iterdir()))


def test_a_good_log_is_reported_as_good(store):
    result = run("store", "repair", store)
    assert (result.code, result.out) == (0, f"{entries(store)} entries checked, 0 bad\n")
    assert run("store", "repair", store, "--json").document["findings"] == []


def test_problems_are_reported_and_nothing_is_changed(store):
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
    assert "confirm with --yes" in run("store", "repair", store, "--fence", str(position)).err
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
    ports = ("--listen", "127.0.0.1:0", "--api", "127.0.0.1:0")
    started = run_apart("coordinator", BANK, "--store", store, *ports, timeout_s=60.0)
    assert started.code == 1, started
    assert "the newest entries are missing" in " ".join(started.err.split())
    assert not list((store / "log").glob("*"))


@pytest.mark.parametrize("empty", [False, True])
def test_a_list_of_a_store_without_its_log_is_an_error(store, empty):
    shutil.rmtree(store / "log")
    if empty:
        (store / "log").mkdir()
    for command in (("list",), ("list", "--all"), ("show", "latest")):
        result = run("snapshot", *command, "--store", store)
        assert result.code == 1, result
        assert "log/00000000000000000000.json: the log ends before entry 0" in result.error
        assert "restore them from a copy" in result.error


def test_a_store_without_log_or_blobs_names_the_missing_log(store):
    shutil.rmtree(store / "log")
    shutil.rmtree(store / "blobs")
    result = run("snapshot", "list", "--store", store)
    assert result.code == 1
    assert "log: is missing, and with it all entries of the log; restore it from a copy" in result.error
    assert run("store", "repair", store).code == 1
    (store / "log").mkdir()
    assert run("snapshot", "list", "--store", store).code == 0


@pytest.mark.parametrize("directory", ["log", "checkpoints"])
def test_a_fifo_in_the_place_of_a_directory_is_an_error(store, directory):
    """`up` used to take it for a store that is temporarily unreadable, and waited."""
    shutil.rmtree(store / directory)
    os.mkfifo(store / directory)
    for words in (("up", BANK, "--store", store), ("snapshot", "list", "--store", store), ("store", "repair", store)):
        result = run_apart(*words, timeout_s=60.0)
        assert result.code == 1, result
        assert f"{directory}: is a FIFO, but must be a directory" in " ".join(result.err.split())


FAR = 900_000_000_000


def test_a_file_far_beyond_the_log_is_one_finding_and_is_moved_aside(store):
    end = entries(store)
    (store / entry_name(FAR)).write_bytes(b"stray")
    result = run("store", "repair", store)
    assert result.code == 1
    assert f"{entry_name(end)}: entries {end} to 899,999,999,999 are missing, though {entry_name(FAR)}" in result.out
    assert f"{end} entries checked, 1 bad" in result.out
    assert f"strobe store repair {store} --set-aside {FAR}" in result.out
    assert "--fence" not in result.out
    verified = run("snapshot", "verify", "--all", "--store", store)
    assert verified.code == 1
    assert "are missing, though" in " ".join(verified.out.split())
    refused(run("store", "repair", store, "--fence", str(end), "--yes"), "--set-aside")
    assert "confirm with --yes" in run("store", "repair", store, "--set-aside", str(FAR)).err
    done = run("store", "repair", store, "--set-aside", str(FAR), "--yes", "--json")
    assert done.code == 0, done
    (aside,) = done.document["aside"]
    assert (store / aside).read_bytes() == b"stray"
    assert entries(store) == end
    assert run("snapshot", "verify", "--all", "--store", store).code == 0


def test_entries_of_a_log_are_not_moved_aside(store):
    before = entries(store)
    refused(run("store", "repair", store, "--set-aside", "1", "--yes"), "entry 1 stays where it is")
    for path in sorted((store / "log").iterdir())[2:4]:
        path.unlink()
    refused(run("store", "repair", store, "--set-aside", "4", "--yes"), "entry 4 stays where it is")
    assert entries(store) == before - 2


def test_a_far_file_is_not_moved_aside_while_entries_are_lost(store):
    (store / "log" / max(path.name for path in (store / "log").iterdir())).rename(store / entry_name(FAR))
    begin = max((store / "blobs").iterdir()).name
    (store / "log" / f"{begin}.json").unlink()
    shown = run("store", "repair", store)
    assert shown.code == 1
    assert "--set-aside" not in shown.out  # it would be refused
    refused(run("store", "repair", store, "--set-aside", str(FAR), "--yes"), "may be part of the log")
    assert (store / entry_name(FAR)).exists()


@pytest.mark.parametrize("first", [5, 5000])
@pytest.mark.parametrize("blobs", [True, False])
def test_a_log_without_its_beginning_is_neither_moved_nor_fenced(store, first, blobs):
    """S1: as if the checkpoints were lost that stand for removed entries. The log itself used to be moved aside."""
    names = sorted((store / "log").iterdir())
    for path in names[:5]:
        path.unlink()
    for number, path in enumerate(names[5:], first):
        path.rename(store / entry_name(number))
    shutil.rmtree(store / "checkpoints")
    if not blobs:
        shutil.rmtree(store / "blobs")
    left = entries(store)
    missing = f"entries 0 to {first - 1:,} are missing, though {entry_name(first)} exists: the beginning of the log"
    listed = run("snapshot", "list", "--store", store)
    assert listed.code == 1
    shown = run("store", "repair", store)
    assert shown.code == 1
    for text in (listed.err, shown.out):
        assert missing in " ".join(text.split())
        assert "log and checkpoints from a copy" in " ".join(text.split())
        assert not {"--set-aside", "--fence", "newest"} & set(text.split())
    is_far = first == 5000
    checked = 0 if is_far else left
    assert f"{checked} {'entry' if checked == 1 else 'entries'} checked" in shown.out
    refused(
        run("store", "repair", store, "--set-aside", str(first), "--yes"),
        "the beginning of the log" if is_far else "entry 5 stays where it is",
    )
    refused(run("store", "repair", store, "--fence", "0", "--yes"), "the beginning of the log")
    assert entries(store) == left


def test_missing_entries_in_a_row_are_fenced_off_together(store):
    for position in (1, 2, 3):
        (store / entry_name(position)).unlink()
    result = run("store", "repair", store)
    assert f"{entry_name(1)}: entries 1 to 3 are missing, though later entries exist" in result.out
    assert ", 1 bad" in result.out
    done = run("store", "repair", store, "--fence", "2", "--yes")
    assert done.code == 0, done
    assert run("snapshot", "list", "--store", store).code == 0
    assert run("store", "repair", store).code == 0


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


def test_entries_that_were_removed_before_a_checkpoint_are_counted(checkpointed):
    needed = set(Store.open(checkpointed).state().needed_commits())
    removed = [position for position in range(20) if position not in needed]
    for position in removed:
        (checkpointed / entry_name(position)).unlink()
    result = run("store", "repair", checkpointed)
    assert result.code == 0
    assert f"{40 - len(removed)} entries checked, 0 bad" in result.out
    assert f"{len(removed)} entries before the checkpoint at 35 absent" in result.out


def test_entries_lost_before_a_checkpoint_are_one_finding(checkpointed):
    """Entry 0 exists, so nothing was removed on purpose."""
    for position in (3, 4, 5):
        (checkpointed / entry_name(position)).unlink()
    result = run("store", "repair", checkpointed)
    assert result.code == 1
    assert f"{entry_name(3)}: entries 3 to 5 are missing" in result.out
    assert "readers start at the checkpoint at 35" in result.out


@pytest.mark.parametrize("directory", ["log", "blobs", "checkpoints", "tmp"])
def test_a_directory_that_is_a_link_ends_the_repair_at_once(store, directory):
    """The repair used to read it again for each position, forever."""
    (store / directory).rename(store.with_name("elsewhere"))
    (store / directory).symlink_to(store.with_name("elsewhere"))
    result = run("store", "repair", store)
    assert result.code == 1
    assert f"{directory}: is a symbolic link" in " ".join(result.err.split())
