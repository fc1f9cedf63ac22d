"""Entries that a checkpoint replaces are removed, with no effect on readers and writers (S1, S2).

A world is two stores with the same log. Entries are removed from one; the other keeps them all and shows what every
reader must see.
"""

import inspect
import os
import random
import signal
import textwrap
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest
from tests.storage import crashing_collector
from tests.storage.checkpoints.long.test_checkpoints import everything, forged, problems
from tests.storage.children import start
from tests.storage.random_logs import RandomLog
from tests.storage.samples import sample_id

from strobe.errors import LeftBehind, LogConflict, StoreError, StrobeError, TakenOver
from strobe.protocol.values.log_entries import Begin, Term
from strobe.storage import CommitStep, Store, collect
from strobe.storage.checkpoints import removed_entries
from strobe.storage.checkpoints.checkpoint_writer import Checkpointer
from strobe.storage.entries.log_file import entry_name, entry_position
from strobe.storage.files.layout import CHECKPOINTS, LOG
from strobe.storage.log.follower import Follower
from strobe.storage.log.log import Log
from strobe.storage.store import garbage_collection
from strobe.storage.store.optimistic_append import begin_term
from strobe.storage.store.repair import examine, fence_off

EVERY = 4
SEEDS = range(6)
STEPS = 70
SEEDS_FOR_MUTANTS = range(20)
STALE = Begin(str(sample_id(10**6, 10**6)), 1, "chandy-lamport", ("a",), 0)


@pytest.fixture(autouse=True)
def quick_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    """Skip fsync: these tests have no power failure."""
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)


class World:
    """A store from which entries are removed, its twin, and their readers and writers; all random from one seed."""

    def __init__(self, directory: Path, seed: int) -> None:
        self.random = random.Random(seed)
        self.root = directory / "store"
        self.store = Store(Store.create(self.root, identity="0" * 32).backend, checkpoint_every=EVERY)
        self.twin = Store.create(directory / "twin", identity="0" * 32)
        self.coming = RandomLog(seed).entries(10**6)
        self.readers: list[Store] = []
        self.followers: list[Follower] = []
        self.stale: list[Store] = []
        self.refused = self.removed = 0

    def append(self, count: int = 1) -> None:
        for entry in [next(self.coming) for _ in range(count)]:
            position = self.twin.state().next_position
            self.twin.append(entry, position)
            self.store.state()
            self.store.append(entry, position)

    def append_some(self) -> None:
        self.append(self.random.randrange(1, 2 * EVERY))

    def checkpoint(self) -> None:
        self.store.write_checkpoint()

    def sweep(self) -> None:
        entries = [name for name in collect(self.store).names if name.startswith(f"{LOG}/")]
        self.removed += len(entries)

    def sweep_partly(self) -> None:
        """A collector is killed while it removes entries."""
        remove, left = self.store.backend.remove, self.random.randrange(6)

        def until_killed(names: Any) -> None:
            nonlocal left
            for name in names:
                if left == 0:
                    raise StoreError(str(self.root), "killed")
                left -= name.startswith(f"{LOG}/")
                remove([name])

        self.store.backend.remove = until_killed  # type: ignore[method-assign]
        try:
            collect(self.store)
        except StoreError:
            pass
        finally:
            del self.store.backend.remove

    def read(self) -> None:
        """An existing reader reads on, or a new one opens the store."""
        if len(self.readers) < 4:
            self.readers.append(Store.open(self.root))
            return
        reader = self.random.choice(self.readers)
        assert everything(reader.state()) == everything(self.twin.state())

    def follow(self) -> None:
        if len(self.followers) < 4:
            self.followers.append(Follower(self.root))
            return
        follower, whole = self.random.choice(self.followers), Follower(self.twin.url, checkpoints=False)
        assert follower.advance() == whole.advance()
        start = self.random.randrange(whole.end + 1)
        assert found(follower, start) == found(whole, start)

    def stop(self) -> None:
        """A writer reads the log to its end, and is stopped just before it creates an entry."""
        if self.random.random() < 0.5 or not self.stale:
            self.stale.append(Store.open(self.root))
            self.stale[-1].state()
            return
        self.go_on(self.stale.pop())

    def go_on(self, writer: Store) -> None:
        """Resume a stopped writer: its entry is refused, unless the log still ends at that position."""
        position = writer.known.next_position
        is_end = position == self.twin.state().next_position
        try:
            writer.append(STALE, position)
        except (LogConflict, LeftBehind):
            self.refused += 1
        else:
            assert is_end, f"entry {position} was written, and the log goes to {self.twin.state().next_position}"
            self.twin.append(STALE, position)

    def stop_within(self) -> None:
        """A writer is stopped between its last check and the creation of its entry, and meanwhile the log grows."""
        writer = Store.open(self.root)
        position = writer.state().next_position
        writer.on_step = once(CommitStep.ENTRY_SYNCED, self.grow_and_sweep)
        with pytest.raises((LogConflict, LeftBehind)):
            writer.append(STALE, position)

    def grow_and_sweep(self) -> None:
        for _ in range(self.random.randrange(1, 5)):
            self.append(EVERY)
            self.checkpoint()
            self.random.choice([self.sweep, self.sweep, self.sweep_partly])()

    def run(self, steps: int) -> None:
        can = (self.append_some, self.append_some, self.checkpoint, self.checkpoint, self.sweep, self.sweep_partly)
        can += (self.read, self.read, self.follow, self.follow, self.stop, self.stop_within)
        for _ in range(steps):
            self.random.choice(can)()
        for _ in range(10):
            self.random.choice((self.read, self.follow))()
            assert everything(Store.open(self.root).state()) == everything(self.twin.state())
        self.sweep()
        assert problems(self.store) == []
        assert examine(self.store.backend).open == ()


def once(wanted: CommitStep, action: Callable[[], None]) -> Callable[[CommitStep, str], None]:
    done = False

    def on_step(step: CommitStep, name: str) -> None:
        nonlocal done
        if step == wanted and not done:
            done = True
            action()

    return on_step


def found(follower: Follower, start: int) -> list[Any]:
    commits = [(one.position, one.snapshot_id, one.problem) for one in follower.between(start, follower.end)]
    return [(*one, follower.is_removed(one[1] or "")) for one in commits]


def present(root: Path) -> list[int]:
    listed = (entry_position(path.name) for path in (root / LOG).iterdir())
    return sorted(position for position in listed if position is not None)


@pytest.mark.parametrize("seed", SEEDS)
def test_S1_readers_and_writers_see_one_log_after_any_removal(tmp_path: Path, seed: int) -> None:
    world = World(tmp_path, seed)
    world.run(STEPS)
    assert world.removed > 50


def source_without(function: Any, rule: str, instead: str) -> Any:
    """Return `function` with one rule broken."""
    source = textwrap.dedent(inspect.getsource(function))
    assert rule in source
    namespace = dict(function.__globals__)
    exec(source.replace(rule, instead), namespace)
    return namespace[function.__name__]


MUTANTS = [
    pytest.param(
        Log, "append", "if is_superseded(", "if False and (", id="a writer does not look after it has created"
    ),
    pytest.param(Log, "_require_current", "is not None", "is False", id="a reader takes a removed entry for the end"),
    pytest.param(Follower, "_catch_up", "if self._may_skip", "if False", id="a follower does"),
    pytest.param(garbage_collection, "superfluous_entries", "found[-1]", "found[0]", id="only one checkpoint is kept"),
    pytest.param(removed_entries, "_required_by", "if snapshot not in removed", "if False", id="commits go, too"),
    pytest.param(removed_entries, "_required_by", "checkpoint.position - 1", "-1", id="and the entry before it"),
    pytest.param(removed_entries, "is_superseded", "newest[0]", "newest[0] - 2 * EVERY", id="it looks too far back"),
]


@pytest.mark.parametrize(("owner", "name", "rule", "instead"), MUTANTS)
def test_a_broken_rule_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, owner: Any, name: str, rule: str, instead: str
) -> None:
    monkeypatch.setattr(removed_entries, "EVERY", EVERY, raising=False)
    broken = source_without(getattr(owner, name), rule, instead)
    monkeypatch.setattr(owner, name, broken)
    with pytest.raises((AssertionError, StrobeError, pytest.fail.Exception)):
        run_all(tmp_path)


def run_all(directory: Path) -> None:
    for seed in SEEDS_FOR_MUTANTS:
        World(directory / str(seed), seed).run(STEPS)


def swept_store(directory: Path, seed: int = 0, count: int = 10 * EVERY) -> World:
    """A world whose log has `count` entries, of which as many as possible are removed."""
    world = World(directory, seed)
    for _ in range(count // EVERY):
        world.append(EVERY)
        world.checkpoint()
    world.sweep()
    return world


def test_S1_entries_before_a_checkpoint_are_removed_except_commits(tmp_path: Path) -> None:
    world = swept_store(tmp_path)
    older = 9 * EVERY
    state = Store.open(world.root).state()
    kept = {complete.position for complete in state.rooted()} | {older - 1} | set(range(older, 10 * EVERY))
    assert set(present(world.root)) >= kept
    assert len(present(world.root)) < 5 * EVERY
    assert 0 not in present(world.root)
    assert len(list((world.root / CHECKPOINTS).glob("*.json"))) == 2


def test_S2_a_dry_run_lists_the_removals_and_removes_nothing(tmp_path: Path) -> None:
    world = World(tmp_path, 1)
    for _ in range(5):
        world.append(EVERY)
        world.checkpoint()
    before = present(world.root)
    wanted = [name for name in collect(world.store, dry_run=True).names if name.startswith(LOG)]
    assert present(world.root) == before
    assert [name for name in collect(world.store).names if name.startswith(LOG)] == wanted != []
    assert collect(world.store).names == ()


def test_S2_a_long_log_is_removed_in_several_collections(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(garbage_collection, "ENTRIES_AT_ONCE", 3)
    world = World(tmp_path, 1)
    for _ in range(5):
        world.append(EVERY)
        world.checkpoint()
    sizes = []
    while names := [name for name in collect(world.store).names if name.startswith(LOG)]:
        sizes.append(len(names))
        assert everything(Store.open(world.root).state()) == everything(world.twin.state())
    assert len(sizes) > 2
    assert max(sizes) == 3


class Stale:
    """A coordinator that is stopped between its last check of the log and the creation of an entry."""

    def __init__(self, directory: Path) -> None:
        self.world = World(directory, 1)
        self.world.coming = (entry for entry in self.world.coming if not isinstance(entry, Term))
        for _ in range(2):
            self.world.append(EVERY)
            self.world.checkpoint()
        self.store = Store.open(self.world.root, checkpoint_every=EVERY)
        begin_term(self.store, "the first", 0)
        self.twin_log()
        self.position = self.store.state().next_position

    def twin_log(self) -> None:
        """Bring the twin up to date with what others have written."""
        for position, entry in Store.open(self.world.root).read_log(self.world.twin.state().next_position):
            self.world.twin.append(entry, position)  # type: ignore[arg-type]

    def replaced(self) -> None:
        begin_term(self.world.store, "the second", 0)
        self.twin_log()
        self.log_grows()

    def log_grows(self) -> None:
        for _ in range(4):
            self.world.append(EVERY)
            self.world.checkpoint()
            self.world.sweep()
        assert self.position not in present(self.world.root)

    def append(self) -> None:
        self.store.append(STALE, self.position)


def test_S1_a_stale_coordinator_that_reuses_a_removed_position_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is stopped between its check of the previous entry and the creation of its own."""
    stale = Stale(tmp_path)
    check, left = Log._check_predecessor, [stale.replaced]

    def check_and_stop(log: Log, position: int) -> None:
        check(log, position)
        if left:
            left.pop()()

    monkeypatch.setattr(Log, "_check_predecessor", check_and_stop)
    with pytest.raises(TakenOver, match="the second, term 2"):
        stale.append()
    assert stale.position in present(stale.world.root), "it has created it: the name was free"
    world = stale.world
    reader, follower = Store.open(world.root), Follower(world.root)
    follower.advance()
    assert everything(reader.state()) == everything(world.twin.state())
    assert STALE.snapshot not in reader.state().open
    assert problems(world.store) == []
    world.append(2 * EVERY)
    world.checkpoint()
    world.sweep()
    assert stale.position not in present(world.root)


def test_S1_a_coordinator_that_finds_entries_removed_ends_as_taken_over(tmp_path: Path) -> None:
    stale = Stale(tmp_path)
    stale.replaced()
    for attempt in (stale.store.state, stale.append):
        with pytest.raises(TakenOver, match="the second, term 2"):
            attempt()


def test_S1_a_coordinator_left_behind_by_no_other_one_starts_again(tmp_path: Path) -> None:
    """Others have written much while it was stopped. It still leads, and its exit code lets it be started again."""
    stale = Stale(tmp_path)
    stale.log_grows()
    for attempt in (stale.store.state, stale.append):
        with pytest.raises(LeftBehind, match="start again") as raised:
            attempt()
        assert raised.value.exit_code == 3
    again = Store.open(stale.world.root)
    assert begin_term(again, "the same", 0) == 2


def test_S1_a_stopped_writer_whose_entry_was_in_time_is_accepted(tmp_path: Path) -> None:
    """It is stopped after it has created the entry, and the next checkpoint is written before its check."""
    stale = Stale(tmp_path)
    stale.store.on_step = once(CommitStep.ENTRY_DURABLE, lambda: write_on(stale.world))
    stale.append()
    assert STALE.snapshot in Store.open(stale.world.root).state().open


def write_on(world: World) -> None:
    """Append as many entries as one checkpoint needs, and write the checkpoint."""
    for position, entry in Store.open(world.root).read_log(world.twin.state().next_position):
        world.twin.append(entry, position)  # type: ignore[arg-type]
    world.append(EVERY)
    world.checkpoint()


@pytest.mark.parametrize("is_missing", [False, True], ids=["damaged", "missing"])
def test_S1_an_entry_that_was_fenced_off_is_removed_like_others(tmp_path: Path, is_missing: bool) -> None:
    world = World(tmp_path, 2)
    world.append(EVERY + 3)
    bad = EVERY + 1
    for root in (world.root, Path(world.twin.url)):
        (root / entry_name(bad)).unlink()
        if not is_missing:
            (root / entry_name(bad)).write_bytes(b"nonsense")
        fence_off(Store.open(root).backend, bad, "a test", 0)
    world.store = Store.open(world.root, checkpoint_every=EVERY)
    world.twin = Store.open(world.twin.url)
    reader, follower = Store.open(world.root), Follower(world.root)
    reader.state()
    follower.advance()
    for _ in range(4):
        world.append(EVERY)
        world.checkpoint()
        world.sweep()
    assert bad not in present(world.root)
    assert present(world.root)[0] > 0
    assert everything(reader.state()) == everything(Store.open(world.root).state()) == everything(world.twin.state())
    whole = Follower(world.twin.url, checkpoints=False)
    assert follower.advance() == whole.advance()
    assert found(follower, 0) == found(whole, 0)
    assert problems(world.store) == problems(world.twin) == []


@pytest.mark.parametrize("fatal", range(0, 42, 6))
def test_S1_a_collector_killed_at_any_step_leaves_a_whole_store(tmp_path: Path, fatal: int) -> None:
    world = World(tmp_path, 3)
    for _ in range(6):
        world.append(EVERY)
        world.checkpoint()
    world.append(EVERY)  # another checkpoint is due
    child = start(crashing_collector.__name__, str(world.root), str(EVERY), str(fatal))
    child.communicate()
    assert child.returncode == -signal.SIGKILL
    assert everything(Store.open(world.root).state()) == everything(world.twin.state())
    assert problems(Store.open(world.root)) == []
    collect(Store.open(world.root, checkpoint_every=EVERY))
    assert len(present(world.root)) < 4 * EVERY
    assert everything(Store.open(world.root).state()) == everything(world.twin.state())


def test_removing_entries_before_the_checkpoint_exists_is_noticed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = Checkpointer.write

    def too_early(self: Checkpointer) -> str | None:
        for position in range(self.pending.position - 1 if self.pending is not None else 0):
            (tmp_path / "store" / entry_name(position)).unlink(missing_ok=True)
        return write(self)

    monkeypatch.setattr(Checkpointer, "write", too_early)
    world = World(tmp_path, 3)
    world.append(EVERY)

    def die(step: CommitStep, name: str) -> None:
        raise StoreError(world.store.url, "killed")

    world.store.on_step = die
    with pytest.raises(StoreError, match="killed"):
        world.store.write_checkpoint()
    with pytest.raises(StoreError):
        Store.open(world.root).state()


@pytest.mark.parametrize("seed", SEEDS)
def test_S2_a_lost_entry_is_one_finding_and_a_removed_one_is_none(tmp_path: Path, seed: int) -> None:
    """Both by `verify` and by `store repair`, before and after entries are removed."""
    world = World(tmp_path, seed)
    for _ in range(5):
        world.append(EVERY)
        world.checkpoint()
    check_losses(world, range(5 * EVERY - 1))
    world.sweep()
    start = 4 * EVERY
    state = Store.open(world.root).state()
    assert len(present(world.root)) < 5 * EVERY
    check_losses(world, [*(at for at in state.needed_commits() if at < start - 1), *range(start, 5 * EVERY - 1)])


def check_losses(world: World, positions: Iterable[int]) -> None:
    for position in positions:
        path = world.root / entry_name(position)
        raw = path.read_bytes()
        path.unlink()
        if position > 1:  # without one of the first two, entries may have been removed
            assert [one.place for one in problems(world.store)] == [entry_name(position)], f"entry {position}"
            assert [one.place for one in examine(world.store.backend).open] == [entry_name(position)]
        path.write_bytes(raw)
    assert problems(world.store) == []
    assert examine(world.store.backend).open == ()


def test_S2_a_wrong_checkpoint_is_found_after_entries_are_removed(tmp_path: Path) -> None:
    world = swept_store(tmp_path)
    forged(world.root, term=7)
    assert [one.place.partition("/")[0] for one in problems(world.store)] == [CHECKPOINTS]
