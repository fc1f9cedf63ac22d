"""Crafted checkpoints with valid checksums: a wrong one is not used, or every command still ends (E14)."""

import os
import random
import resource
from pathlib import Path

import msgspec
import pytest
from blake3 import blake3
from tests.cli.command_line import run
from tests.storage.checkpoints.long.test_checkpoints import everything, whole
from tests.storage.crafting import copied, newest_checkpoint, replace_checkpoint
from tests.storage.random_logs import checkpointed_store
from tests.support.mutating import NESTING, mutated

from strobe.errors import StoreError
from strobe.storage import Store
from strobe.storage.checkpoints.checkpoint_collection import superfluous
from strobe.storage.checkpoints.commit_segments import segment_name
from strobe.storage.log.follower import Follower
from strobe.storage.store.repair import examine

MUTANTS = 60
SEGMENTS = 40
MEMORY_BYTES_MAX = 200 << 20
HOSTILE_BYTES = [
    b"", b"\xc1", b"\x91" * NESTING, b"\xdd\xff\xff\xff\xff", b"\xdf\xff\xff\xff\xff", b"\xdb\xff\xff\xff\xff", b"\x90",
    b"\x9a", bytes(1000),
]  # fmt: skip


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    return checkpointed_store(tmp_path_factory.mktemp("base") / "store", 3, 75, 7)


@pytest.fixture(autouse=True)
def bounded_memory():
    """Fail if the memory of this process grows by more than a bound during the test."""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    yield
    assert (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024 < MEMORY_BYTES_MAX


@pytest.fixture(autouse=True)
def quick_disk(monkeypatch):
    """Skip fsync: these tests have no power failure."""
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)


def replace_segment(root, chance, change):
    """Change the bytes of a segment file that the newest checkpoint names, and name the changed file in it."""
    _, document = newest_checkpoint(root)
    ref, kind = chance.choice(document["segments"]), chance.choice(("commits", "details"))
    raw = change((root / segment_name(ref["start"], ref["end"], ref[kind], kind)).read_bytes())
    ref[kind] = blake3(raw).hexdigest()
    (root / segment_name(ref["start"], ref["end"], ref[kind], kind)).write_bytes(raw)
    replace_checkpoint(root, document)


def mutated_columns(chance):
    def change(raw):
        if chance.random() < 0.2:
            return chance.choice(HOSTILE_BYTES)
        try:
            return msgspec.msgpack.encode(mutated(msgspec.msgpack.decode(raw), chance)[0])
        except (OverflowError, TypeError):  # a number that MessagePack cannot encode
            return chance.choice(HOSTILE_BYTES)

    return change


def read_all(root):
    """Read all that a state has; iterate over everything that has ended."""
    state = Store.open(root).state()
    everything_read = [(one.summary, one.blobs.splitlines()) for one in state.committed.values()]
    return everything_read, dict(state.aborted), dict(state.removed), list(state.needed_commits())


def follow(root):
    follower = Follower(root)
    follower.advance()
    return follower.between(0, follower.end)


def append_more(root):
    """Append as a coordinator does, until the next checkpoint is written."""
    store = Store(Store.open(root).backend, checkpoint_every=7)
    last = max(store.positions())
    end = store.state().next_position
    entry = store.read_entry(last)
    for position in range(end, end + 8):
        store.append(entry, position)
        store.write_checkpoint()


USES = {
    "read": read_all,
    "follow": follow,
    "repair": lambda root: examine(Store.open(root).backend),
    "verify": lambda root: Store.open(root).verify_bytes(),
    "collect": lambda root: superfluous(Store.open(root).backend, Store.open(root).header.blake3),
    "go on": append_more,
}
COMMANDS = (
    ("snapshot", "list", "--store"),
    ("snapshot", "verify", "--all", "--store"),
    ("snapshot", "collect", "--dry-run", "--store"),
    ("store", "repair"),
)


def use(root, seed):
    """Use a store in every way; only errors that name the place are allowed."""
    for name, job in USES.items():
        try:
            job(root)
        except Exception as error:
            if not isinstance(error, StoreError) or error.exit_code != 1:
                raise AssertionError(seed, name) from error
    command = COMMANDS[seed % len(COMMANDS)]
    assert run(*command, root).code in (0, 1), (seed, command)


def test_E14_mutated_checkpoints_end_every_command_with_a_message(base, tmp_path):
    """E14: one value of the newest checkpoint is changed, and the checkpoint is sealed again."""
    refused = 0
    for seed in range(MUTANTS):
        crafted = copied(base, tmp_path / "crafted")
        document, _ = mutated(newest_checkpoint(crafted)[1], random.Random(seed))
        replace_checkpoint(crafted, document)
        used = Store.open(crafted).resume()
        refused += used is None or used.checkpoint.position != 70
        use(crafted, seed)
    assert MUTANTS / 3 < refused < MUTANTS


def test_E14_mutated_segments_end_every_command_with_a_message(base, tmp_path):
    """E14: one value of a segment is changed, and the checkpoint names the new bytes."""
    for seed in range(SEGMENTS):
        chance = random.Random(seed)
        crafted = copied(base, tmp_path / "crafted")
        replace_segment(crafted, chance, mutated_columns(chance))
        use(crafted, seed)


def huge_run(document):
    document["fold"].setdefault("reasons", []).append("x")
    document["fold"].setdefault("aborted", []).append([1, "a", 1, 2**62, 0])


BAD_VALUES = {
    "every 0": lambda one: one.update(every=0),
    "every too large": lambda one: one.update(every=10**12),
    "a run longer than the log": huge_run,
    "a run without a reason": lambda one: one["fold"].setdefault("aborted", []).append([1, "a", 1, 2, 99]),
    "a path as checksum": lambda one: one["segments"][-1].update(commits="../../../../etc/passwd"),
    "a term beyond the log": lambda one: one.update(term=2**63 - 1),
    "an id that is none": lambda one: one["memory"].update(ended=[["zz", True]]),
    "a counter far ahead": lambda one: one["memory"].update(counters=[[1, 2**63 - 1]]),
    "another number of commits": lambda one: one["segments"][0].update(live=one["segments"][0]["live"] + 1),
    "a segment too many": lambda one: one["segments"].append(one["segments"][-1]),
}


@pytest.mark.parametrize("bad", BAD_VALUES)
def test_E14_a_checkpoint_with_a_bad_value_is_skipped(base, tmp_path, caplog, bad):
    """E14: an older one is used, with a warning, and the state equals that of the whole log."""
    crafted = copied(base, tmp_path / "crafted")
    _, document = newest_checkpoint(crafted)
    BAD_VALUES[bad](document)
    replace_checkpoint(crafted, document)
    opened = Store.open(crafted)
    assert opened.resume().checkpoint.position == 63
    assert "a checkpoint cannot be used" in caplog.text
    assert everything(opened.state()) == everything(whole(crafted))


def as_fifo(file: Path) -> None:
    file.unlink()
    os.mkfifo(file)


def as_link(file: Path) -> None:
    file.rename(file.with_name("elsewhere"))
    file.symlink_to(file.with_name("elsewhere"))


@pytest.mark.parametrize("change", [as_fifo, as_link, Path.unlink])
@pytest.mark.parametrize("pattern", ["*.json", "*.commits", "*.details"])
def test_E14_special_or_missing_files_of_checkpoints_are_skipped(base, tmp_path, pattern, change):
    """E14: opening a FIFO would wait for a writer forever."""
    expected = follow(base)
    crafted = copied(base, tmp_path / "crafted")
    for file in sorted((crafted / "checkpoints").glob(pattern)):
        change(file)
    use(crafted, 0)
    assert [one.snapshot_id for one in follow(crafted)] == [one.snapshot_id for one in expected]


def test_a_follower_reads_the_entries_if_a_segment_is_missing(base, tmp_path, caplog):
    """The segment is not needed at first. A second read must not leave its commits out silently."""
    expected = [one.snapshot_id for one in follow(base)]
    crafted = copied(base, tmp_path / "crafted")
    follower = Follower(crafted)
    follower.advance()
    for file in (crafted / "checkpoints").glob("*.commits"):
        file.unlink()
    for _ in range(2):
        assert [one.snapshot_id for one in follower.between(0, follower.end)] == expected
    assert "the entries of the log are read instead" in caplog.text
