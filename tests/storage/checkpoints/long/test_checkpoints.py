"""Checkpoints of the log's fold (S1): a state read from one equals the fold of all entries, or it is refused."""

import os
import random
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.storage import random_logs
from tests.storage.random_logs import RandomLog, write_log

from strobe.errors import StoreCorrupt
from strobe.protocol import Lifecycle, Policy, View
from strobe.protocol.coordinator.memory import Memory, recall
from strobe.protocol.coordinator.messages import EntryLogged, Recovered
from strobe.storage import LogState, Problem, Store
from strobe.storage.checkpoints.checkpoint_collection import superfluous
from strobe.storage.checkpoints.checkpoint_files import MERGED, encode_checkpoint, newest_first, read_checkpoint
from strobe.storage.checkpoints.folded_log import Folded
from strobe.storage.entries.log_file import entry_name
from strobe.storage.entries.log_state import Committed, Manifests
from strobe.storage.files.layout import CHECKPOINTS
from strobe.storage.log.follower import Follower

SEEDS = range(5)
ENTRIES = 70


@pytest.fixture(autouse=True)
def quick_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    """Skip fsync: these tests have no power failure."""
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)


def everything(state: LogState) -> dict[str, Any]:
    """Return all that a fold holds, whatever its fields, with data that is read on demand and without its caches."""
    found = {name: value for name, value in vars(state).items() if not isinstance(value, Manifests)}
    del found["_last_blobs"]
    for name in ("committed", "removed_parents"):
        found[name] = [(snapshot, known(complete, name)) for snapshot, complete in found[name].items()]
    return {name: dict(value) if name in ("aborted", "removed") else value for name, value in found.items()}


def known(complete: Committed, kind: str) -> tuple[Any, ...]:
    times = complete.position, complete.started_us, complete.at_us
    details = (complete.blobs, complete.summary) if kind == "committed" else ()
    return (*times, *details, complete.manifest)


def written_unknown(found: dict[str, Any]) -> dict[str, Any]:
    """Return the same without the numbers of bytes written."""
    rows = [
        (snapshot, (*times, blobs, msgspec.structs.replace(summary, written_bytes=None), manifest))
        for snapshot, (*times, blobs, summary, manifest) in found["committed"]
    ]
    return found | {"committed": rows}


def whole(root: Path) -> LogState:
    """Return the fold of all entries."""
    copy = root.with_name("without")
    shutil.copytree(root, copy, ignore=shutil.ignore_patterns(CHECKPOINTS))
    state = Store.open(copy).state()
    shutil.rmtree(copy)
    return state


def checkpointed(root: Path, seed: int, every: int, count: int = ENTRIES) -> Store:
    """A store with a random log, with each checkpoint written as soon as it was due."""
    store = Store(Store.create(root, identity="0" * 32).backend, checkpoint_every=every)
    for position, entry in enumerate(RandomLog(seed).entries(count)):
        store.append(entry, position)
        store.write_checkpoint()
    return store


def without_newest(root: Path) -> Iterator[int]:
    """Yield the position of the newest checkpoint, then remove that one, until none is left."""
    backend = Store.open(root).backend
    while names := newest_first(backend):
        yield int(names[0].partition("/")[2].partition("-")[0])
        (root / names[0]).unlink()


@pytest.mark.parametrize("every", [1, 7])
@pytest.mark.parametrize("seed", SEEDS)
def test_S1_the_fold_from_any_checkpoint_equals_that_of_all_entries(tmp_path: Path, seed: int, every: int) -> None:
    root = tmp_path / "store"
    checkpointed(root, seed, every)
    expected = everything(whole(root))
    positions = []
    for position in without_newest(root):
        positions.append(position)
        store = Store.open(root)
        loaded = store.resume()
        assert loaded is not None
        assert loaded.checkpoint.position == position
        assert everything(store.state()) == expected
    assert positions == list(range(ENTRIES - ENTRIES % every, 0, -every))


def problems(store: Store) -> list[Problem]:
    """Return the problems of the store, except missing blobs: these logs name blobs that nobody has written."""
    return [problem for problem in store.verify_bytes() if not problem.place.startswith("blobs/")]


def written(root: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in (root / CHECKPOINTS).iterdir()}


@pytest.mark.parametrize("seed", SEEDS)
def test_S1_every_writer_makes_the_same_checkpoint_files(tmp_path: Path, seed: int) -> None:
    """From the whole log at once or from checkpoint to checkpoint, by one writer or by several in turn."""
    every, end = 3, 3 * MERGED + 9
    alone = checkpointed(tmp_path / "alone", seed, every, end)
    late = Store.create(tmp_path / "late", identity="0" * 32)
    write_log(late, seed, end)
    at_once = Store.open(late.url, checkpoint_every=every)
    at_once.state()
    newest = at_once.write_checkpoint()
    assert newest is not None
    assert written(tmp_path / "late").items() <= written(tmp_path / "alone").items()
    in_turn = Store.create(tmp_path / "in turn", identity="0" * 32)
    for position, entry in enumerate(RandomLog(seed).entries(end)):
        store = Store.open(in_turn.url, checkpoint_every=every)
        store.state()
        store.append(entry, position)
        store.write_checkpoint()
    assert written(tmp_path / "in turn") == written(tmp_path / "alone")
    assert problems(alone) == problems(at_once) == problems(in_turn) == []


def test_S1_two_processes_make_the_same_files(tmp_path: Path) -> None:
    """Sets have a different order in each process."""
    for seed in ("1", "2"):
        environment = {**os.environ, "PYTHONHASHSEED": seed}
        command = [sys.executable, "-m", random_logs.__name__, str(tmp_path / seed)]
        subprocess.run(command, check=True, env=environment, cwd=Path(__file__).parents[4])
    stores = sorted(path.name for path in (tmp_path / "1").iterdir())
    assert len(stores) > 3
    for store in stores:
        assert written(tmp_path / "1" / store) == written(tmp_path / "2" / store)


def forged(root: Path, **changes: Any) -> None:
    """Seal the newest checkpoint of a store again, with changed contents."""
    backend = Store.open(root).backend
    name = newest_first(backend)[0]
    checkpoint = read_checkpoint(backend, name, Store.open(root).header.blake3)
    (root / name).unlink()
    other, raw = encode_checkpoint(msgspec.structs.replace(checkpoint, **changes))
    (root / other).write_bytes(raw)


MUTANTS = [name for name in Folded.__struct_fields__ if name != "reasons"]


@pytest.mark.parametrize("field", MUTANTS)
def test_S2_a_checkpoint_without_a_field_fails_both_checks(tmp_path: Path, field: str) -> None:
    """The property above notices it, and so does `verify`, which makes checkpoints again from the entries."""
    for seed in range(40):
        root = tmp_path / f"{seed}"
        store = checkpointed(root, seed, 10, 30)
        checkpoint = read_checkpoint(store.backend, newest_first(store.backend)[0], store.header.blake3)
        default = getattr(Folded(), field)
        if getattr(checkpoint.fold, field) == default:
            continue
        forged(root, fold=msgspec.structs.replace(checkpoint.fold, **{field: default}))
        used = Store.open(root).resume()
        is_used = used is not None and used.checkpoint.position == checkpoint.position
        # Without some fields the others are inconsistent, and the checkpoint is not used at all.
        assert is_used == (everything(Store.open(root).state()) != everything(whole(root)))
        caught = "does not match the entries", "cannot be read", "cannot be open"
        assert any(word in found.problem for found in problems(Store.open(root)) for word in caught)
        return
    raise AssertionError(f"no log has anything in {field}")


def test_S2_a_checkpoint_with_a_wrong_memory_is_named_by_verify(tmp_path: Path) -> None:
    store = checkpointed(tmp_path / "store", 1, 10, 30)
    assert problems(store) == []
    forged(tmp_path / "store", memory=Memory(epoch=1))
    (problem,) = problems(store)
    assert problem.place == newest_first(store.backend)[0]


def spoil(path: Path) -> None:
    raw = path.read_bytes()
    path.write_bytes(raw[:-3] + bytes([raw[-3] ^ 1]) + raw[-2:])


def test_a_damaged_checkpoint_is_skipped_with_a_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    root = tmp_path / "store"
    checkpointed(root, 3, 10, 35)
    expected = everything(whole(root))
    for name in newest_first(Store.open(root).backend):
        spoil(root / name)
        caplog.clear()
        assert everything(Store.open(root).state()) == expected
        assert name in caplog.text
    assert Store.open(root).resume() is None


def test_a_damaged_or_missing_segment_is_skipped_with_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    root = tmp_path / "store"
    checkpointed(root, 3, 10, 35)
    expected = everything(whole(root))
    for path in sorted((root / CHECKPOINTS).glob("*.*s")):
        raw = path.read_bytes()
        for damaged in (raw[:-1], raw[:-1] + bytes([raw[-1] ^ 1]), None):
            path.write_bytes(damaged) if damaged is not None else path.unlink()
            found = everything(Store.open(root).state())
            if path.suffix == ".details":  # the commits' own entries do not have the positions of their begins
                assert found["committed"] != expected["committed"]
                assert written_unknown(found) == written_unknown(expected)
            else:
                assert found == expected
            assert [problem.place for problem in problems(Store.open(root))] == [f"{CHECKPOINTS}/{path.name}"]
        path.write_bytes(raw)
    assert "cannot be used" in caplog.text
    assert "the entries of the log are read instead" in caplog.text


def test_a_checkpoint_beyond_the_end_of_the_log_is_not_used_and_named(tmp_path: Path) -> None:
    """An older copy of the log was restored, or its newest entries are lost."""
    root = tmp_path / "store"
    checkpointed(root, 3, 10, 30)
    for position in range(25, 30):
        (root / entry_name(position)).unlink()
    store = Store.open(root)
    loaded = store.resume()
    assert loaded is not None
    assert loaded.checkpoint.position == 20
    assert store.state().next_position == 25
    assert ["beyond the end" in problem.problem for problem in problems(store)] == [True]


def test_a_checkpoint_of_another_store_is_not_used(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    checkpointed(tmp_path / "store", 3, 10, 30)
    other = Store.create(tmp_path / "other")
    write_log(other, 4, 30)
    shutil.copytree(tmp_path / "store" / CHECKPOINTS, tmp_path / "other" / CHECKPOINTS, dirs_exist_ok=True)
    assert Store.open(other.url).resume() is None
    assert "is of another store" in caplog.text


def test_an_entry_replaced_after_the_checkpoint_is_damage(tmp_path: Path) -> None:
    root = tmp_path / "store"
    checkpointed(root, 3, 10, 30)
    fork = Store.create(tmp_path / "fork", identity="0" * 32)
    write_log(fork, 4, 40)
    shutil.copy(tmp_path / "fork" / entry_name(30), root / entry_name(30))
    with pytest.raises(StoreCorrupt, match="does not follow"):
        Store.open(root).state()


def test_without_a_good_checkpoint_missing_entries_are_named(tmp_path: Path) -> None:
    root = tmp_path / "store"
    checkpointed(root, 3, 10, 30)
    (root / entry_name(0)).unlink()
    assert Store.open(root).state().next_position == 30
    for name in newest_first(Store.open(root).backend):
        spoil(root / name)
    with pytest.raises(StoreCorrupt, match=r"log/0{20}\.json.* no checkpoint can be used"):
        Store.open(root).state()


def test_a_lifecycle_from_a_checkpoint_equals_one_from_all_entries(tmp_path: Path) -> None:
    """E7: the memory in the checkpoint equals what the coordinator itself remembers."""
    root = tmp_path / "store"
    for seed in SEEDS:
        shutil.rmtree(root, ignore_errors=True)
        checkpointed(root, seed, 7)
        for _ in without_newest(root):
            store = Store.open(root)
            loaded = store.resume()
            assert loaded is not None
            lifecycles = new_lifecycle(), new_lifecycle()
            recall(lifecycles[0], loaded.checkpoint.memory)
            for position, event in enumerate(events_of(root)):
                lifecycles[1].handle(event, 0)
                if position >= loaded.checkpoint.position:
                    lifecycles[0].handle(event, 0)
            assert lifecycles[0].handle(Recovered(), 5) == lifecycles[1].handle(Recovered(), 5)
            assert parts(lifecycles[0]) == parts(lifecycles[1])


def new_lifecycle() -> Lifecycle:
    return Lifecycle(View(1, ("a",), ()), Policy(), "chandy-lamport", epoch=0, recovering=True, outputs=("c",))


def events_of(root: Path) -> Iterator[EntryLogged]:
    store = Store.open(root)
    store.backend.names = lambda directory: []  # type: ignore[method-assign]  # there are no checkpoints
    for _, entry in store.read_log():
        origin = store.origin(entry)
        yield EntryLogged(entry, origin.departed, origin.joined) if origin is not None else EntryLogged(entry)


def parts(lifecycle: Lifecycle) -> dict[str, Any]:
    """Return what each part stores; a reference to another part is replaced by its name."""
    known = vars(lifecycle)
    places = {id(part): name for name, part in known.items()}

    def kept(part: object) -> object:
        fields = vars(part) if hasattr(part, "__dict__") else None
        return part if fields is None else {name: places.get(id(value), value) for name, value in fields.items()}

    return {name: kept(part) for name, part in known.items()}


@pytest.mark.parametrize("seed", SEEDS)
def test_D2_a_follower_finds_the_same_from_any_checkpoint(tmp_path: Path, seed: int) -> None:
    """Including commits that were removed since: a stream reports them as removed."""
    root, bare = tmp_path / "store", tmp_path / "bare"
    checkpointed(root, seed, 3)
    shutil.copytree(root, bare, ignore=shutil.ignore_patterns(CHECKPOINTS))
    whole = Follower(bare)
    whole.advance()
    expected = [(one.position, one.snapshot_id, one.problem) for one in whole.between(0, whole.end)]
    for position in without_newest(root):
        follower = Follower(root)
        assert follower.end == position
        assert follower.advance() == whole.end
        for start in (position, position - 1, 0):
            found = [(one.position, one.snapshot_id, one.problem) for one in follower.between(start, whole.end)]
            assert found == [one for one in expected if one[0] >= start]
        assert follower.checksum_before(position) == whole.checksum_before(position)
        removed = [snapshot for _, snapshot, _ in expected if snapshot and whole.is_removed(snapshot)]
        assert all(map(follower.is_removed, removed))


@pytest.mark.parametrize("seed", SEEDS)
def test_S2_superseded_files_can_be_removed_in_any_order(tmp_path: Path, seed: int) -> None:
    """E8: readers of either checkpoint that is kept, followers and later writers find the same as before."""
    root = tmp_path / "store"
    store = checkpointed(root, seed, 5)
    expected, end = everything(whole(root)), store.state().next_position
    before = Follower(root)
    before.advance()
    followed = before.between(0, end)
    removable = superfluous(store.backend, store.header.blake3)
    assert removable
    random.Random(seed).shuffle(removable)
    for count, name in enumerate(removable):
        (root / name).unlink()
        if count % 5 == 0 or count == len(removable) - 1:
            after = Follower(root)
            after.advance()
            assert after.between(0, end) == followed
            assert everything(Store.open(root).state()) == expected
            assert problems(Store.open(root)) == []
    assert superfluous(store.backend, store.header.blake3) == []
    spoil(root / newest_first(store.backend)[0])  # one checkpoint may be lost
    assert everything(Store.open(root).state()) == expected
    again = Store.open(root, checkpoint_every=5)
    assert again.state().next_position == end
    for position, entry in enumerate(RandomLog(seed + 100, again.term).entries(12), end):
        again.append(entry, position)
        again.write_checkpoint()
    assert everything(Store.open(root).state()) == everything(again.state())


def test_nothing_is_superfluous_unless_two_checkpoints_are_intact(tmp_path: Path) -> None:
    root = tmp_path / "store"
    store = checkpointed(root, 3, 10, 30)
    names = newest_first(store.backend)
    assert len(names) == 3
    assert superfluous(store.backend, store.header.blake3)
    for name in names[1:]:
        spoil(root / name)
    assert superfluous(store.backend, store.header.blake3) == []
