"""Crafted stores: whatever a log or a blob contains under valid checksums, a command ends with a message (E14)."""

import os
import random
import resource

import pytest
from tests.cli.command_line import BANK, run, simulated_store
from tests.spark.examining import entries_of, examined
from tests.storage.crafting import ENTRY, chained, commits_of, copied, documents_of, with_blob
from tests.storage.keyed_samples import KeyedWriter, accounts
from tests.support.mutating import NESTING, mutated

from strobe.storage import Store
from strobe.storage.content.frames_blob import RECORD

MUTANTS = 90
BLOBS = 50
PIPELINE = 60
MEMORY_BYTES_MAX = 300 << 20
ENDED = (0, 1)
COMMANDS = {
    "list": ("list",),
    "show": ("show",),
    "verify": ("verify", "--all"),
    "restore": ("verify", "--level", "restore", "--system", BANK),
    "diff": ("diff",),
    "predicates": ("predicates",),
    "pin": ("pin", "latest"),
    "collect": ("collect",),
    "json": ("show", "--json"),
}


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    return simulated_store(tmp_path_factory.mktemp("whole"))


@pytest.fixture
def bounded_memory():
    """Fail if the memory of this process grows by more than a bound during the test."""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    yield
    assert (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024 < MEMORY_BYTES_MAX


def command(name, store):
    words = COMMANDS[name]
    if name == "diff":
        listed = run("snapshot", "list", "--json", "--store", store)
        ids = [one["id"] for one in listed.document["snapshots"]] if listed.code == 0 else []
        words = ("diff", *(ids[-2:] if len(ids) > 1 else ("latest", "latest")))
    return run("snapshot", *words, "--store", store)


@pytest.mark.usefixtures("bounded_memory")
def test_E14_mutated_entries_end_every_command_with_a_message(store, tmp_path):
    """E14: one value of one entry is changed, and the log is sealed again from there."""
    codes = set()
    documents = documents_of(store)
    commits = commits_of(store)
    for seed in range(MUTANTS):
        chance = random.Random(seed)
        position = chance.choice(commits) if chance.random() < 0.8 else chance.randrange(len(documents))
        document, change = mutated(documents[position], chance)
        crafted = copied(store, tmp_path / "crafted")
        chained(crafted, position, {position: document})
        for name in chance.sample(list(COMMANDS), 2):
            result = command(name, crafted)
            assert result.code in ENDED, (seed, position, change, name, result)
            codes.add(result.code)
    assert codes >= {0, 1}


@pytest.fixture(scope="module")
def keyed_store(tmp_path_factory):
    """A store with a keyed state in a base and a delta, and messages in flight."""
    place = tmp_path_factory.mktemp("keyed") / "store"
    writer = KeyedWriter(Store.create(place), state := accounts(10))
    writer.commit(1)
    state["account 1"] = b"changed"
    del state["account 2"]
    writer.commit(2)
    return place


BODIES = [
    b"", b"\xc1", b"\x91" * NESTING, b"\x81\xa1a" * NESTING, b"\x91" * NESTING + b"\xc0", b"\x91" * 900 + b"\xc0",
    b"\x81\xa1a" * NESTING + b"\xc0", b"\x81\xa1a" * 900 + b"\xc0", b"\xdd\xff\xff\xff\xff", b"\xdf\xff\xff\xff\xff",
    b"\xdb\xff\xff\xff\xff", b"\xc6\xff\xff\xff\xff", b"\xa1\xff", b"\xd4\x05\x01", b"\xd6\xff\xff\xff\xff\xff",
    b"\x82\xa1a\x01\xa1a\x02", b"\x81\x91\x01\x01", b"\xcb\x7f\xf8\0\0\0\0\0\0", b"\xcf" + b"\xff" * 8,
    b"\x81\xc0\xc0", b"\x93\x01\x02\x03", bytes(1000),
]  # fmt: skip


def hostile_bytes(raw, chance):
    """Return hostile content for a blob in place of `raw`."""
    body = chance.choice(BODIES)
    place = chance.randrange(len(raw) + 1)
    part = len(body).to_bytes(4, "big")
    return chance.choice((
        lambda: body,
        lambda: raw + body,
        lambda: raw[:place],
        lambda: raw[:place] + body + raw[place:],
        lambda: raw + b"\xce" + part + body,  # one more part of a segment
        lambda: bytes(byte ^ (1 << chance.randrange(8)) if at == place else byte for at, byte in enumerate(raw)),
    ))()  # fmt: skip


def with_frames(store, position, chance):
    """Change the body of one frame in flight, and everything that states its size, so that all sizes agree."""
    document = documents_of(store)[position]
    record = next(one for one in document["entry"]["manifest"]["processes"].values() if one.get("frames"))
    body = chance.choice(BODIES)
    count = chance.choice((0, 1, 2, 2**32 - 1))
    consumed = chance.choice((0, 0, min(1, count)))
    ordinal = chance.choice((0, 1, 2**63, 2**64 - 1))
    frame = RECORD.pack(ordinal, count, consumed, len(body)) + body
    channel = chance.choice(list(record["in_flight"]))
    for one in record["in_flight"].values():
        one.update(offset=0, bytes=0, frames=0, messages=0)
    record["in_flight"][channel].update(bytes=len(frame), frames=1, messages=count - consumed)
    for name, one in record["in_flight"].items():
        if name != channel:
            one["offset"] = len(frame) if name > channel else 0
    chained(store, position, {position: document})
    with_blob(
        store,
        position,
        lambda manifest: next(r for r in manifest["processes"].values() if r.get("frames"))["frames"],
        lambda _: frame,
    )


def spoil_blob(store, position, chance):
    """Change one blob of the snapshot at `position`."""
    if chance.random() < 0.3 and '"frames":{' in (store / ENTRY.format(position)).read_text():
        with_frames(store, position, chance)
        return
    kind = chance.choice(("state", "state", "deltas"))

    def choose(manifest):
        record = manifest["processes"][chance.choice(list(manifest["processes"]))]
        record = next((one for one in manifest["processes"].values() if one.get("deltas")), record)
        return record["deltas"][0] if kind == "deltas" and record.get("deltas") else record["state"]

    with_blob(store, position, choose, lambda raw: hostile_bytes(raw, chance))


@pytest.mark.usefixtures("bounded_memory")
def test_E14_crafted_blobs_end_every_command_with_a_message(store, keyed_store, tmp_path):
    """E14: states, keyed segments and frames with any bytes, whose names are their checksums."""
    codes = set()
    for seed in range(BLOBS):
        chance = random.Random(seed)
        chosen = chance.choice((store, keyed_store))
        crafted = copied(chosen, tmp_path / "crafted")
        spoil_blob(crafted, commits_of(crafted)[-1], chance)
        for name in chance.sample(list(COMMANDS), 2):
            result = command(name, crafted)
            assert result.code in ENDED, (seed, name, result)
            codes.add(result.code)
    assert codes >= {0, 1}


def test_E14_a_channel_of_the_view_without_a_record_is_named(store, tmp_path):
    """E14: its proof is violated, and `diff` names the place."""
    crafted = copied(store, tmp_path / "crafted")
    position = commits_of(crafted)[-1]
    document = documents_of(crafted)[position]
    del document["entry"]["manifest"]["processes"]["a"]["sent"]["a->b"]
    chained(crafted, position, {position: document})
    assert command("verify", crafted).code == 1
    result = command("diff", crafted)
    assert result.code == 1
    assert "process a: a->b is missing in `sent`" in " ".join(result.err.split())


def test_E14_a_fifo_in_the_place_of_a_blob_or_an_entry_is_refused(store, tmp_path):
    """E14: opening it would wait for a writer forever."""
    for pattern in ("blobs/*/*", "log/*.json"):
        crafted = copied(store, tmp_path / "crafted")
        for file in crafted.glob(pattern):
            file.unlink()
            os.mkfifo(file)
        for name in COMMANDS:
            assert command(name, crafted).code in (0, 1, 2, 3), (pattern, name)


@pytest.mark.usefixtures("bounded_memory")
def test_E14_the_pipeline_quarantines_crafted_snapshots_and_continues(store, keyed_store, tmp_path):
    """E14: whatever a commit or a blob contains, its examination returns a row for it."""
    for seed in range(PIPELINE):
        chance = random.Random(seed)
        crafted = copied(chance.choice((store, keyed_store)), tmp_path / "crafted")
        position = commits_of(crafted)[-1]
        if seed % 2:
            spoil_blob(crafted, position, chance)
        else:
            document, _ = mutated(documents_of(crafted)[position], chance)
            chained(crafted, position, {position: document})
        opened = Store.open(crafted)
        found = {row["log_position"] for row in examined(opened)}
        assert {entry.position for entry in entries_of(opened)} == found, seed
