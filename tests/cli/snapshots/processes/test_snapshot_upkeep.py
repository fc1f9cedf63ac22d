"""`strobe snapshot pin`, `unpin`, `remove` and `collect`: what is kept, what is deleted, and the reasons."""

from pathlib import Path

import pytest
from tests.cli.command_line import refused, run
from tests.storage import racing_writer
from tests.storage.children import start
from tests.storage.samples import store_of_two_days

from strobe.protocol.values.ids import short_name
from strobe.protocol.values.log_entries import Abort, Begin, EpochStart, Pin, Remove
from strobe.storage import Store
from strobe.storage.store import retention


def ids(store):
    return [name for _, name, _ in Store.open(store).list()]


def blobs(store):
    return {path.relative_to(store).as_posix(): path.stat().st_size for path in store.glob("blobs/*/*")}


def append(store, entry):
    opened = Store.open(store)
    opened.append(entry, opened.state().next_position)


def test_pin_and_unpin_are_entries_of_the_log(store):
    first = ids(store)[0]
    result = run("snapshot", "pin", first[:15], "--store", store)
    assert (result.code, result.out) == (0, f"{first} is pinned\n")
    assert Store.open(store).state().pinned == {first}
    assert f"pinned: {short_name(first)}" in run("snapshot", "list", "--store", store).out
    assert f"snapshot   {first} ({short_name(first)}), pinned" in run("snapshot", "show", first, "--store", store).out
    assert run("snapshot", "show", first, "--json", "--store", store).document["pinned"] is True
    assert run("snapshot", "unpin", first, "--store", store).out == f"{first} is not pinned\n"
    assert Store.open(store).state().pinned == set()


def test_pinning_a_pinned_snapshot_changes_nothing(store):
    run("snapshot", "pin", "latest", "--store", store)
    end = Store.open(store).state().next_position
    document = run("snapshot", "pin", "latest", "--json", "--store", store).document
    assert document == {"store": str(store), "id": ids(store)[-1], "pinned": True, "changed": False}
    assert Store.open(store).state().next_position == end


@pytest.mark.parametrize("command", ["pin", "unpin", "remove"])
def test_an_incomplete_snapshot_is_refused(store, command):
    append(store, Begin("000001-00000077-b", 1, "chandy-lamport", ("b",), 5))
    refused(run("snapshot", command, "000001-00000077-b", "--store", store), "has begun", "no outcome yet")
    refused(run("snapshot", command, "000009-", "--store", store), "there is no such snapshot")


def test_remove_logs_its_reason_and_collect_frees_the_bytes(store):
    first, second, *_ = ids(store)
    result = run("snapshot", "remove", first, second[:15], "--reason", "by mistake", "--store", store)
    assert result.code == 0
    assert "2 snapshots removed; to free the space: strobe snapshot collect" in result.out
    assert first not in ids(store)
    assert Store.open(store).state().removed == {first: "by mistake", second: "by mistake"}
    refused(run("snapshot", "show", first, "--store", store), "was removed: by mistake")
    before = blobs(store)
    document = run("snapshot", "collect", "--json", "--store", store).document
    assert document["removed"] == []
    gone = {name: size for name, size in before.items() if name not in blobs(store)}
    assert {*document["files"]} == {*gone}
    assert document["bytes"] == sum(gone.values()) > 0
    assert run("snapshot", "verify", "--all", "--store", store).code == 0


def test_removing_the_newest_is_refused_and_nothing_else_is_removed(store):
    before = ids(store)
    result = run("snapshot", "remove", before[0], "latest", "--store", store)
    refused(
        result, f"{before[-1]} is the newest complete snapshot", "take another snapshot first", "nothing was removed"
    )
    assert ids(store) == before


def test_removing_a_pinned_snapshot_is_refused_with_advice(store):
    first = ids(store)[0]
    run("snapshot", "pin", first, "--store", store)
    refused(
        run("snapshot", "remove", first, "--store", store),
        f"{first} is pinned: unpin it first: strobe snapshot unpin {first}",
    )
    run("snapshot", "unpin", first, "--store", store)
    assert run("snapshot", "remove", first, "--store", store).code == 0


def test_the_restored_snapshot_cannot_be_removed_until_a_newer_one_exists(store):
    first = ids(store)[0]
    append(store, EpochStart(2, 0, restored=first))
    refused(run("snapshot", "remove", first, "--store", store), "the system was restored from it")
    kept = run("snapshot", "collect", "--keep-last", "1", "--json", "--store", store).document["kept"]
    assert [snapshot["id"] for snapshot in kept] == [first, ids(store)[-1]]


def test_collect_without_numbers_keeps_every_complete_snapshot(store):
    opened = Store.open(store)
    append(store, Begin("000001-00000077-b", 1, "chandy-lamport", ("b",), 5))
    append(store, Begin("000001-00000078-b", 1, "chandy-lamport", ("b",), 5))
    opened.write_blob("000001-00000077-b", b"aborted")
    opened.write_blob("000001-00000078-b", b"open")
    append(store, Abort("000001-00000077-b", "crash", 6))
    before, names = blobs(store), ids(store)
    result = run("snapshot", "collect", "--store", store)
    assert result.code == 0
    assert f"{len(names)} complete snapshots kept, 0 removed; 1 file with 7 B freed" in result.out
    assert ids(store) == names
    assert len(before) - len(blobs(store)) == 1
    append(store, EpochStart(2, 0))  # the process that began it will never complete it
    assert "1 file with 4 B freed" in run("snapshot", "collect", "--store", store).out


def test_a_dry_run_names_every_file_and_touches_nothing(store):
    before, end = blobs(store), Store.open(store).state().next_position
    words = ("snapshot", "collect", "--keep-last", "1", "--store", store)
    text = run(*words, "--dry-run").out
    assert "keep: newest, last" in text
    assert "1 complete snapshot would be kept" in text
    assert max(map(len, text.splitlines())) <= 100
    planned = run(*words, "--dry-run", "--json").document
    assert blobs(store) == before
    assert Store.open(store).state().next_position == end
    done = run(*words, "--json").document
    assert planned | {"dry_run": False} == done
    assert {name: size for name, size in before.items() if name not in done["files"]} == blobs(store)
    assert len(ids(store)) == 1


def test_E8_collect_skips_what_another_process_has_just_removed(store, monkeypatch):
    first, *others = ids(store)
    plan = retention.plan

    def plan_late(*arguments):
        planned = plan(*arguments)
        assert retention.remove(Store.open(store), first, "somebody else", 0)
        return planned

    monkeypatch.setattr(retention, "plan", plan_late)
    result = run("snapshot", "collect", "--keep-last", "1", "--store", store)
    assert result.code == 0, result
    assert f"1 complete snapshot kept, {len(others) - 1} removed" in result.out
    assert Store.open(store).state().removed[first] == "somebody else"


def test_simulated_snapshots_are_all_in_one_hour_and_day(store):
    words = ("--hourly", "3", "--daily", "2", "--json", "--store", store)
    kept = run("snapshot", "collect", *words).document["kept"]
    assert kept == [{"id": ids(store)[-1], "reasons": ["newest", "hour", "day"]}]


def test_E8_hourly_keeps_the_newest_of_hours_and_daily_the_newest_of_days(tmp_path):
    """E8: `--hourly` and `--daily` are not confused."""
    taken = store_of_two_days(tmp_path / "store")
    words = ("--hourly", "1", "--daily", "2", "--json", "--store", tmp_path / "store")
    assert run("snapshot", "collect", *words).document["kept"] == [
        {"id": taken["day 0, hour 2"], "reasons": ["day"]},
        {"id": taken["day 1, hour 3"], "reasons": ["newest", "hour", "day"]},
    ]
    assert ids(tmp_path / "store") == [taken["day 0, hour 2"], taken["day 1, hour 3"]]


def test_negative_numbers_are_refused(store):
    assert run("snapshot", "collect", "--keep-last", "-1", "--store", store).code == 2


def test_a_damaged_log_is_named_and_no_file_is_removed(store):
    entry = sorted(store.glob("log/*"))[1]
    entry.write_bytes(b"?")
    before = blobs(store)
    for words in (("pin", "latest"), ("remove", "latest"), ("collect", "--keep-last", "1"), ("diff", "x", "y")):
        result = run("snapshot", *words, "--store", store)
        assert result.code == 1
        assert f"log/{entry.name}" in result.error
    assert blobs(store) == before


def test_commands_append_their_entries_beside_another_writer(store):
    """S1: the other writer appends without a pause; each pin and removal gets its own entry in the log."""
    first, *_, last = ids(store)
    with start(racing_writer.__name__, str(store), "p") as writer:
        for turn in range(8):
            writer.stdin.write("append_some 30\n")
            assert run("snapshot", "pin", first, "--store", store).code == 0
            refused(run("snapshot", "remove", first, "--store", store), "is pinned")
            assert run("snapshot", "unpin", first, "--store", store).code == 0
            assert writer.stdout.readline() == "30\n", turn
        writer.stdin.close()
        assert writer.wait(timeout=30) == 0
    assert run("snapshot", "remove", first, "--store", store).code == 0
    entries = [entry for _, entry in Store.open(store).read_log()]
    assert sum(isinstance(entry, Pin) for entry in entries) == 16
    assert sum(isinstance(entry, Remove) for entry in entries) == 1
    assert sum(isinstance(entry, Begin) and entry.initiators == ("p",) for entry in entries) == 240
    assert Store.open(store).resolve("latest") == last
    assert Store.open(store).verify_bytes() == []


def test_the_command_printed_as_advice_runs(store):
    assert Path(store).is_dir()
    first = ids(store)[0]
    command = run("snapshot", "remove", first, "--store", store).out.split("free the space: strobe ")[1].split()
    assert run(*command).code == 0
