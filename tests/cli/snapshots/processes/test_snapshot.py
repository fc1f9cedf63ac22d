"""`strobe snapshot`: what it shows of a store, and how it reports damage."""

import errno
import os
import shutil

import msgspec
import pytest
from tests.cli.command_line import refused, run

from strobe.protocol.values.ids import SnapshotId, short_name
from strobe.protocol.values.log_entries import Abort, Begin
from strobe.storage import Store
from strobe.storage.store import retention


def ids(store):
    return [name for _, name, _ in Store.open(store).list()]


def add_inconsistent(path):
    """Commit a snapshot that lacks a message in flight; return its id."""
    store = Store.open(path)
    complete = next(snapshot for snapshot in map(store.load, ids(path)) if snapshot.in_flight_messages)
    identity = SnapshotId(1, 999, "a")
    fragments = {}
    for name, fragment in complete.fragments.items():
        in_flight = {channel: items[1:] for channel, items in fragment.in_flight.items()}
        fragments[name] = msgspec.structs.replace(fragment, snapshot=identity, in_flight=in_flight)
    position = store.state().next_position
    store.append(Begin(str(identity), complete.view.number, complete.protocol, ("a",), complete.started_us), position)
    manifest = store.write_snapshot(msgspec.structs.replace(complete, id=identity, fragments=fragments))
    store.commit(str(identity), manifest, position + 1, complete.completed_us)
    return str(identity)


def test_list_shows_complete_snapshots(pristine):
    result = run("snapshot", "list", "--store", pristine)
    assert result.code == 0
    shown = [line.split()[0] for line in result.out.splitlines()[1 : 1 + len(ids(pristine))]]
    assert shown == [short_name(name) for name in ids(pristine)]
    assert f"{len(ids(pristine))} snapshots" in result.out
    assert max(map(len, result.out.splitlines())) <= 100


def test_list_all_shows_aborted_snapshots_with_the_reason(store):
    opened = Store.open(store)
    position = opened.state().next_position
    opened.append(Begin("000001-00000077-b", 1, "chandy-lamport", ("b",), 5), position)
    opened.append(Abort("000001-00000077-b", "process c crashed", 6), position + 1)
    opened.append(Begin("000001-00000078-b", 1, "chandy-lamport", ("b",), 7), position + 2)
    assert "1.77 " not in run("snapshot", "list", "--store", store).out
    text = run("snapshot", "list", "--all", "--store", store).out
    assert "process c crashed" in text
    assert "\n1.77 " in text
    listed = run("snapshot", "list", "--all", "--json", "--store", store).document["snapshots"]
    assert [(entry["id"], entry["status"]) for entry in listed[-2:]] == [
        ("000001-00000077-b", "aborted"),
        ("000001-00000078-b", "open"),
    ]


def test_list_last_shows_the_newest_and_the_total_number(pristine):
    everything = run("snapshot", "list", "--store", pristine, "--json").document["snapshots"]
    newest = run("snapshot", "list", "--store", pristine, "--last", "1", "--json").document["snapshots"]
    assert len(everything) > 1
    assert newest == everything[-1:]
    shown = run("snapshot", "list", "--store", pristine, "--last", "1").out
    assert f"the last 1 of {len(everything)} snapshots" in shown
    assert f"{short_name(everything[0]['id'])} " not in shown


def test_E5_list_shows_bytes_written_beside_bytes_of_state(store):
    opened = Store.open(store)
    parent = opened.load("latest")
    position, identity = opened.state().next_position, SnapshotId(1, 90, "a")
    begin = Begin(str(identity), parent.view.number, parent.protocol, ("a",), 5, parent=str(parent.id))
    opened.append(begin, position)
    fragments = {
        name: msgspec.structs.replace(fragment, snapshot=identity) for name, fragment in parent.fragments.items()
    }
    same = msgspec.structs.replace(parent, id=identity, fragments=fragments)
    opened.commit(str(identity), opened.write_snapshot(same), position + 1, 6)
    first, *_, last = run("snapshot", "list", "--store", store, "--json").document["snapshots"]
    assert first["written_bytes"] >= first["state_bytes"] > 0  # frames in flight are written too
    assert (last["written_bytes"], last["state_bytes"]) == (0, parent.state_bytes)
    lines = run("snapshot", "list", "--last", "1", "--store", store).out.splitlines()
    assert "written" in lines[0].split()
    assert " 0 B " in lines[1]


def test_short_ids_are_accepted_and_printed_unless_two_snapshots_have_the_number(store):
    name = ids(store)[0]
    short = short_name(name)
    for command in ("show", "verify", "diff"):
        words = ("latest",) if command == "diff" else ()
        by_short, whole = (run("snapshot", command, one, *words, "--store", store, "--json") for one in (short, name))
        assert by_short.document == whole.document
    assert f"snapshot   {name} ({short})" in run("snapshot", "show", short, "--store", store).out
    assert f"\n{short} " in run("snapshot", "verify", "--all", "--store", store).out
    twin = add_inconsistent(store)
    opened = Store.open(store)
    opened.append(Begin(twin[:-1] + "b", 1, "chandy-lamport", ("b",), 5), opened.state().next_position)
    assert "\n1.999 " in run("snapshot", "list", "--store", store).out  # the other one is not complete
    listed = run("snapshot", "list", "--all", "--store", store).out
    assert "\n1.999 " in listed
    assert f"\n{twin[:-1]}b " in listed


def test_list_is_the_same_from_a_checkpoint_as_from_the_entries(pristine, tmp_path):
    copy = shutil.copytree(pristine, tmp_path / "copy")
    store = Store.open(copy, checkpoint_every=2)
    store.state()
    assert store.write_checkpoint() is not None
    for words in ([], ["--all"], ["--json"], ["--all", "--json", "--last", "2"]):
        one, other = (run("snapshot", "list", "--store", place, *words).out for place in (pristine, copy))
        assert one.replace(str(pristine), "") == other.replace(str(copy), "")


def test_list_of_a_store_without_snapshots(tmp_path):
    Store.create(tmp_path / "empty")
    assert run("snapshot", "list", "--store", tmp_path / "empty").out == "no complete snapshot\n"
    refused(run("snapshot", "show", "--store", tmp_path / "empty"), "no complete snapshot yet")


def test_the_sizes_listed_are_those_of_the_snapshot(pristine):
    opened = Store.open(pristine)
    for entry in run("snapshot", "list", "--json", "--store", pristine).document["snapshots"]:
        snapshot = opened.load(entry["id"])
        assert entry["state_bytes"] == snapshot.state_bytes
        assert entry["in_flight_messages"] == snapshot.in_flight_messages
        assert entry["in_flight_bytes"] == snapshot.in_flight_bytes


def test_show_prints_one_value_of_a_state(pristine):
    whole = run("snapshot", "show", "latest", "--store", pristine, "--json").document["processes"][0]
    field, value = next(iter(whole["state"].items()))
    path = f"{whole['process']}.{field}"
    shown = run("snapshot", "show", "latest", path, "--store", pristine)
    assert (shown.code, shown.out.splitlines()[1]) == (0, f"{path} = {value}")
    document = run("snapshot", "show", "latest", path, "--store", pristine, "--json").document
    assert document["value"] == value
    assert document["id"] == ids(pristine)[-1]
    refused(run("snapshot", "show", "latest", f"{path}x", "--store", pristine), f"has no field '{field}x'")


def test_show_is_a_freeze_frame_of_processes_channels_and_messages(pristine):
    """E1: with the bytes in flight on each channel."""
    result = run("snapshot", "show", "latest", "--store", pristine)
    assert result.code == 0
    assert f"snapshot   {ids(pristine)[-1]}" in result.out
    assert "proof      holds on 12 channels" in result.out
    assert '{"balance":' in result.out
    assert "pay in " in result.out
    document = run("snapshot", "show", "--store", pristine, "--json").document
    money = sum(process["state"]["balance"] for process in document["processes"])
    money += sum(message["payload"]["amount"] for channel in document["channels"] for message in channel["in_flight"])
    assert money == 800
    for channel in document["channels"]:
        assert channel["sent"] == channel["received"] + len(channel["in_flight"])
        assert (channel["in_flight_bytes"] > 0) == bool(channel["in_flight"])
    assert sum(channel["in_flight_bytes"] for channel in document["channels"]) == document["in_flight_bytes"]


def test_E8_show_prints_a_snapshot_removed_after_it_was_loaded(store, monkeypatch):
    first = ids(store)[0]
    load = Store.load

    def load_and_remove(self, name):
        loaded = load(self, name)
        assert retention.remove(Store.open(store), first, "retention", 0)
        return loaded

    monkeypatch.setattr(Store, "load", load_and_remove)
    assert run("snapshot", "show", first, "--json", "--store", store).document["id"] == first


def test_an_id_can_be_abbreviated(pristine):
    first = ids(pristine)[0]
    assert first in run("snapshot", "show", first[:-3], "--store", pristine).out


def test_an_id_that_does_not_exist_is_refused(pristine):
    refused(
        run("snapshot", "show", "000009-00000001-a", "--store", pristine), "there is no such snapshot; complete ones"
    )


def test_opaque_states_are_shown_as_bytes(tmp_path):
    (tmp_path / "opaque.py").write_text(
        "from strobe import *\n"
        "class Opaque(Process):\n"
        "    def capture(self): return bytes(range(40))\n"
        "    def restore(self, state): pass\n"
        "mine = System({'a': Opaque()}, [])\n"
    )
    words = ("--faults", "none", "--snapshots", "1", "--store", tmp_path / "opaque")
    assert run("simulate", f"{tmp_path}/opaque.py:mine", *words).code == 0
    assert "40 bytes: 00 01 02 03" in run("snapshot", "show", "--store", tmp_path / "opaque").out
    document = run("snapshot", "show", "--store", tmp_path / "opaque", "--json").document
    assert document["processes"][0]["encoding"] == "bytes"


def test_verify_reports_that_all_hold(pristine):
    single = run("snapshot", "verify", "--store", pristine)
    assert single.code == 0
    assert "1 of 1 snapshot holds" in single.out
    every = run("snapshot", "verify", "--all", "--store", pristine)
    assert every.code == 0
    count = len(ids(pristine))
    assert f"{count} of {count} snapshots hold; 0 damaged files" in every.out
    assert run("snapshot", "verify", "--all", "--json", "--store", pristine).document["holds"] is True


def test_verify_names_the_channel_of_an_inconsistent_snapshot(store):
    wrong = add_inconsistent(store)
    result = run("snapshot", "verify", wrong, "--store", store)
    assert result.code == 1
    assert "violated" in result.out
    assert "1 missing" in " ".join(result.out.split())
    assert run("snapshot", "show", wrong, "--store", store).code == 1
    every = run("snapshot", "verify", "--all", "--store", store, "--json")
    assert every.code == 1
    assert [entry["id"] for entry in every.document["snapshots"] if entry["verdict"] != "holds"] == [wrong]


def test_verify_names_a_damaged_blob(store):
    blob = next(path for path in sorted(store.glob("blobs/*/*")))
    blob.write_bytes(b"?" + blob.read_bytes()[1:])
    every = run("snapshot", "verify", "--all", "--store", store)
    assert every.code == 1
    assert blob.name in "".join(every.out.split())
    assert "1 damaged file" in every.out
    shown = run("snapshot", "show", ids(store)[0], "--store", store)
    assert shown.code == 1
    assert blob.name in shown.error


def test_verify_names_a_truncated_log_entry(store):
    entry = sorted(store.glob("log/*"))[3]
    entry.write_bytes(entry.read_bytes()[:40])
    for words in (("list",), ("show",), ("verify",)):
        result = run("snapshot", *words, "--store", store)
        assert result.code == 1
        assert f"log/{entry.name}" in result.error
    every = run("snapshot", "verify", "--all", "--store", store)
    assert every.code == 1
    assert f"damaged: log/{entry.name}" in every.out


def test_a_missing_log_entry_is_named(store):
    entry = sorted(store.glob("log/*"))[2]
    entry.unlink()
    result = run("snapshot", "list", "--store", store)
    assert result.code == 1
    assert f"log/{entry.name}: is missing" in result.error


@pytest.mark.parametrize("words", [("list",), ("show",), ("verify",), ("verify", "--all")], ids=" ".join)
def test_a_store_of_another_version_is_refused(store, words):
    header = store / "strobe.json"
    header.write_text(header.read_text().replace('"version":1', '"version":7'))
    refused(run("snapshot", *words, "--store", store), "has version 7 of the format")


@pytest.mark.parametrize("words", [("list",), ("show",), ("verify",), ("verify", "--all")], ids=" ".join)
def test_a_path_without_a_store_is_refused(tmp_path, words):
    binary = tmp_path / "binary"
    binary.write_bytes(bytes(range(256)))
    refused(run("snapshot", *words, "--store", binary), "is not a directory")
    refused(run("snapshot", *words, "--store", tmp_path), "holds no store")
    refused(run("snapshot", *words, "--store", tmp_path / "nothing"), "does not exist")


@pytest.mark.parametrize("words", [("list",), ("verify",), ("collect",), ("pin", "latest")], ids=" ".join)
def test_a_store_without_read_permission_is_reported_with_advice(store, monkeypatch, words):
    stat = os.stat

    def refuse(path, *arguments, **options):
        if str(path).startswith(str(store)):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))
        return stat(path, *arguments, **options)

    monkeypatch.setattr(os, "stat", refuse)
    result = run("snapshot", *words, "--store", store)
    assert result.code == 3, result
    assert "cannot look at itself: Permission denied; let this user read it, or run as one who may" in result.error


@pytest.mark.parametrize("words", [("list",), ("verify",), ("verify", "--all")], ids=" ".join)
def test_a_path_that_is_too_long_is_reported_with_advice(tmp_path, words):
    result = run("snapshot", *words, "--store", tmp_path / ("x" * 300))
    assert result.code == 3, result
    assert "cannot look at itself: File name too long; give a shorter path" in result.error


def test_an_id_and_all_are_not_both_taken(pristine):
    refused(run("snapshot", "verify", "latest", "--all", "--store", pristine), "not both")
