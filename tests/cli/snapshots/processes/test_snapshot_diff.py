"""`strobe snapshot diff`, and how `list` and `show` print pauses, durations and keyed states of live snapshots."""

import shutil

import msgspec
import pytest
from tests.cli.command_line import refused, run, simulated_store
from tests.storage.samples import begin, sample

from strobe.keyed_state import KeyedState
from strobe.protocol.values.fragment import KEYED, LocalState
from strobe.storage import Store, collect
from strobe.storage.store import retention

STARTED_US = 1_700_000_000_000_000


@pytest.fixture(scope="module")
def pristine(tmp_path_factory):
    return simulated_store(tmp_path_factory.mktemp("pristine"))


@pytest.fixture
def live(tmp_path):
    """A store as a live system writes it: two snapshots, keyed state, durations, positions of sources and sinks."""
    store = Store.create(tmp_path / "live")
    state = KeyedState(int)
    state.update({f"k{number}": number for number in range(1000)})
    with state.freeze() as frozen:
        number, base = frozen.number, b"".join(frozen.slices())
    state["k1"] = -1
    del state["k2"]
    with state.freeze() as frozen:
        delta = b"".join(frozen.slices(number))
    commit_live(store, 1, LocalState(4, KEYED, base, sources={"orders": marked(7)}))
    commit_live(store, 2, LocalState(9, KEYED, base, deltas=(delta,), sources={"orders": marked(19)}, sinks={"out": 3}))
    return tmp_path / "live"


def commit_live(store, counter, state):
    whole = sample(counter)
    fragments = {**whole.fragments, "a": msgspec.structs.replace(whole.fragments["a"], state=state)}
    started_us = STARTED_US + counter * 1_000_000
    times = {"started_us": started_us, "completed_us": started_us + 12_300}
    name = begin(store, counter, parent=store.state().newest_complete)
    manifest = store.write_snapshot(msgspec.structs.replace(whole, fragments=fragments, **times))
    records = {
        process: msgspec.structs.replace(record, pause_us=410, duration_us=11_200, recorded_us=started_us)
        for process, record in manifest.processes.items()
    }
    manifest = msgspec.structs.replace(manifest, processes=records)
    store.commit(name, manifest, store.state().next_position, at_us=started_us)


def ids(store):
    return [name for _, name, _ in Store.open(store).list()]


def test_what_changed_is_shown_field_by_field_and_channel_by_channel(pristine):
    first, *_, last = ids(pristine)
    result = run("snapshot", "diff", first[:15], "latest", "--store", pristine)
    assert result.code == 0
    assert f"from       {first}" in result.out
    assert f"to         {last}" in result.out
    assert max(map(len, result.out.splitlines())) <= 100
    opened = Store.open(pristine)
    for name, fragment in opened.load(last).fragments.items():
        before = msgspec.msgpack.decode(opened.load(first).fragments[name].state.data)["balance"]
        after = msgspec.msgpack.decode(fragment.state.data)["balance"]
        assert f"balance {before} → {after} ({after - before:+})" in result.out


def test_the_document_has_everything(pristine):
    first, *_, last = ids(pristine)
    found = run("snapshot", "diff", first, last, "--json", "--store", pristine).document["difference"]
    assert [process["process"] for process in found["processes"]] == ["a", "b", "c", "d"]
    money = sum(
        field["after"] - field["before"]
        for process in found["processes"]
        for field in process["fields"]
        if field["path"] == "balance"
    )
    opened = Store.open(pristine)
    in_flight = [
        sum(
            message["amount"]
            for fragment in opened.load(name).fragments.values()
            for items in fragment.in_flight.values()
            for item in items
            for message in msgspec.msgpack.decode(item.frame.body)[item.consumed :]
        )
        for name in (first, last)
    ]
    assert money == in_flight[0] - in_flight[1], "what the branches lost is on the way"
    for channel in found["channels"]:
        sent, received, between = (
            channel[what]["after"] - channel[what]["before"] for what in ("sent", "received", "in_flight")
        )
        assert sent == received + between


def test_a_snapshot_does_not_differ_from_itself(pristine):
    result = run("snapshot", "diff", "latest", "latest", "--store", pristine)
    assert result.out.count("the same") == 4
    assert "0 channels moved, 12 did not" in result.out


def remove_first(store):
    """Remove the oldest snapshot with its blobs, as retention does."""
    opened = Store.open(store)
    retention.remove(opened, opened.list()[0][1], "retention", 0)
    collect(opened)


@pytest.mark.parametrize("step", ["state", "read_blob"])
def test_E8_a_snapshot_removed_while_it_is_compared_is_named(pristine, tmp_path, monkeypatch, step):
    store = shutil.copytree(pristine, tmp_path / "store")
    first = ids(store)[0]
    taken = getattr(Store, step)

    def take_and_remove(self, *arguments):
        monkeypatch.setattr(Store, step, taken)
        found = taken(self, *arguments)
        remove_first(store)
        return found

    monkeypatch.setattr(Store, step, take_and_remove)
    refused(run("snapshot", "diff", first, "latest", "--store", store), f"{first}: was removed: retention")


def test_diff_of_a_damaged_snapshot_is_an_error_with_advice(pristine, tmp_path):
    store = shutil.copytree(pristine, tmp_path / "store")
    for blob in store.glob("blobs/*/*"):
        blob.write_bytes(b"?")
    result = run("snapshot", "diff", ids(store)[0], "latest", "--store", store)
    assert result.code == 1
    assert "restore it from a copy" in result.error


def marked(offset):
    """Return a position as a file source stores it: a hash in the bits above the byte offset."""
    return 4711 << 40 | offset


def test_diff_counts_keys_and_shows_positions_of_sources_and_sinks(live):
    result = run("snapshot", "diff", *ids(live), "--store", live)
    assert "keys: 0 added, 1 changed, 1 deleted" in result.out
    assert "['k1'] 1 → -1 (-2)" in result.out
    assert "['k2'] - 2" in result.out
    assert "source orders 7 → 19 (+12)" in result.out
    assert "sink out + 3" in result.out
    assert "apart      +1.000 s" in result.out


def test_show_prints_durations_and_the_contents_of_keyed_states(live):
    result = run("snapshot", "show", "--store", live)
    assert "complete after 12.3 ms, longest pause 0.4 ms" in result.out
    assert "999 keys in " in result.out
    assert ", 1 delta" in result.out
    assert "orders read to 19, out written to 3" in " ".join(result.out.split())
    row = next(line for line in result.out.splitlines() if line.startswith("b "))
    assert row.split()[2:4] == ["0.41", "11.2"]
    process = run("snapshot", "show", "--json", "--store", live).document["processes"][0]
    assert (process["keys"], process["deltas"], process["encoding"]) == (999, 1, "keyed")
    assert (process["state"], process["state_bytes"]) == (None, None)
    assert (process["sources"], process["sinks"]) == ({"orders": marked(19)}, {"out": 3})
    assert (process["pause_us"], process["duration_us"], process["signed"]) == (410, 11_200, False)


def test_list_has_epoch_sizes_pauses_and_durations(live):
    text = run("snapshot", "list", "--store", live).out
    assert "2023-11-14 22:13:22.000Z" in text
    assert max(map(len, text.splitlines())) <= 100
    first, second = run("snapshot", "list", "--json", "--store", live).document["snapshots"]
    assert first["epoch"] == 1
    assert first["durations_us"] == dict.fromkeys("abc", 11_200)
    assert first["pause_us"] == 410
    assert second["parent"] == first["id"]
    assert second["state_bytes"] == Store.open(live).load(second["id"]).state_bytes
