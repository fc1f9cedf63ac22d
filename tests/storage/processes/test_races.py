"""S1: if several processes want the same log position, exactly one gets it."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.storage import racing_writer
from tests.storage.children import start
from tests.storage.samples import begin, commit, sample, sample_id

from strobe.errors import LogConflict, SnapshotNotFound
from strobe.protocol.values.log_entries import Abort, Begin, Commit, Manifest, Pin, Remove
from strobe.storage import LogState, Store, append_when, collect
from strobe.storage.checkpoints.checkpoint_files import checkpoint_position
from strobe.storage.content.manifests import blobs_of
from strobe.storage.inspection.verification import Level, StoreLevels
from strobe.storage.log.follower import Follower


@contextmanager
def racers(url: str, count: int) -> Iterator[list]:
    with ExitStack() as stack:
        children = [stack.enter_context(start(racing_writer.__name__, url, f"p{number}")) for number in range(count)]
        yield children
        for child in children:
            child.stdin.close()
        assert [child.wait(timeout=30) for child in children] == [0] * count


def race(children: list, orders: list[str]) -> list[str]:
    """Send every racer its order, as nearly at once as possible, and return their answers."""
    for child, order in zip(children, orders, strict=True):
        child.stdin.write(order + "\n")
    return [child.stdout.readline().strip() for child in children]


@pytest.mark.parametrize(("count", "rounds"), [(2, 200), (8, 60)])
def test_exactly_one_of_the_writers_gets_each_position(tmp_path: Path, count: int, rounds: int) -> None:
    url = Store.create(tmp_path / "store").url
    winners = []
    with racers(url, count) as children:
        for position in range(rounds):
            answers = race(children, [f"append {position}"] * count)
            assert sorted(answers) == ["lost"] * (count - 1) + ["won"]
            winners.append(f"p{answers.index('won')}")
    store = Store.open(url)
    entries = [entry for _, entry in store.read_log()]
    assert [entry.initiators[0] for entry in entries if isinstance(entry, Begin)] == winners
    assert len(set(winners)) > 1, "one writer won every round: this was no race"
    assert store.verify_bytes() == []
    assert list((tmp_path / "store" / "tmp").iterdir()) == []


def test_the_first_of_racing_commits_and_aborts_wins_for_everyone(tmp_path: Path) -> None:
    store = Store.create(tmp_path / "store")
    base = commit(store, sample(1))
    with racers(store.url, 4) as children:
        for counter in range(2, 32):
            start_at = store.state().next_position
            snapshot = begin(store, counter, parent=base)
            answers = race(children, [f"{what} {snapshot}" for what in ("commit", "abort", "commit", "abort")])
            first = next(
                entry
                for _, entry in store.read_log(start_at)
                if isinstance(entry, Commit | Abort) and entry.snapshot == snapshot
            )
            assert set(answers) == {"committed" if isinstance(first, Commit) else "aborted"}
            assert (snapshot in store.state().committed) == isinstance(first, Commit)
    outcomes = [entry for _, entry in store.read_log() if isinstance(entry, Commit | Abort)]
    assert len(outcomes) == 1 + 30 * 4
    assert store.resolve(str(sample_id(1))) == base


def test_S1_racing_writers_of_checkpoints_and_collectors_leave_one_log(tmp_path: Path) -> None:
    """Two processes write the same checkpoints and remove entries, while two append and this one keeps reading."""
    every, rounds = 8, 6
    url = Store.create(tmp_path / "store").url
    reader, follower = Store.open(url), Follower(url)
    with racers(url, 4) as children:
        for _ in range(rounds):
            answers = race(children, [f"checkpoint {every}"] * 2 + [f"append_some {every}"] * 2)
            assert answers[2:] == [str(every)] * 2
            assert all(answer == "None" or answer.startswith("checkpoints/") for answer in answers[:2])
            reader.state()
            follower.advance()
        race(children, [f"checkpoint {every}"] * 4)
    end = 2 * every * rounds
    store = Store.open(url)
    assert store.state().next_position == reader.state().next_position == follower.advance() == end
    assert store.state().open == reader.state().open != {}
    assert 0 < store.positions()[0] <= end
    positions = [checkpoint_position(name) for name in store.backend.names("checkpoints")]
    found = [position for position in positions if position is not None]
    assert len(found) == len(set(found)) <= 3
    assert store.verify_bytes() == []


def test_one_of_racing_creators_makes_the_store_and_all_use_it(tmp_path: Path) -> None:
    with racers(str(tmp_path / "store"), 8) as children:
        assert sorted(race(children, ["append 0"] * 8)) == ["lost"] * 7 + ["won"]
    assert Store.open(tmp_path / "store").verify_bytes() == []


def test_concurrent_collectors_remove_nothing_that_a_writer_needs(tmp_path: Path) -> None:
    """Each snapshot reuses blobs of the previous one, which is removed meanwhile; after every third, another is
    aborted.
    """
    store = Store.create(tmp_path / "store")
    parent = commit(store, sample(1))
    collected = 0
    with racers(store.url, 2) as children:
        for counter in range(2, 62):
            for child in children:
                child.stdin.write("collect 5\n")
            snapshot = sample(counter, balance=counter)
            name = begin(store, counter, parent)
            store.append(Remove(parent, "a newer one is on its way", 1), store.state().next_position)
            manifest = store.write_snapshot(snapshot)
            store.commit(name, manifest, store.state().next_position, at_us=2)
            if counter % 3 == 0:
                aborted = begin(store, 1000 + counter, name)
                store.write_blob(aborted, f"garbage {counter}".encode())
                store.append(Abort(aborted, "no reason", 3), store.state().next_position)
            assert Store.open(store.url).load("latest") == snapshot
            parent = name
            collected += sum(int(child.stdout.readline()) for child in children)
    assert collected > 60
    collect(store)
    assert store.verify_bytes() == []
    needed = {f"{ref.begin:020d}/{ref.blake3}" for ref in blobs_of(store.state().committed[parent].manifest)}
    assert {path.relative_to(tmp_path / "store/blobs").as_posix() for path in tmp_path.rglob("blobs/*/*")} == needed


def test_E8_racing_retention_keeps_newest_and_pinned_snapshots(tmp_path: Path) -> None:
    """Two retentions that keep one snapshot run all the time, while this writer commits and pins every fourth."""
    store = Store.create(tmp_path / "store")
    parent = commit(store, sample(1))
    pinned: list[str] = []
    removed = 0
    with racers(store.url, 2) as children:
        for counter in range(2, 42):
            for child in children:
                child.stdin.write("retain 1\n")
            snapshot = sample(counter, balance=counter)
            name = retry_on_conflict(begin, store, counter, parent)
            retry_on_conflict(commit_written, store, name, store.write_snapshot(snapshot))
            if counter % 4 == 0:
                pin = Pin(name, True, counter)
                append_when(store, lambda state, pin=pin: pin)
                pinned.append(name)
            assert Store.open(store.url).load("latest") == snapshot
            parent = name
            removed += sum(int(child.stdout.readline()) for child in children)
    assert removed > 20
    replayed = LogState()
    for position, entry in store.read_log():
        if isinstance(entry, Remove):
            assert entry.snapshot in replayed.committed, "removed twice"
            assert entry.snapshot != replayed.newest_complete
            assert entry.snapshot not in replayed.pinned
        replayed.apply(position, entry)
    assert {*pinned} <= {*replayed.committed}
    assert all(Store.open(store.url).load(name) for name in pinned)
    assert store.verify_bytes() == []


def test_E8_files_removed_by_concurrent_retention_are_not_damage(tmp_path: Path) -> None:
    """This process commits and verifies all snapshots, while retention in another one removes nearly all of them."""
    store = Store.create(tmp_path / "store")
    removed = removed_meanwhile = 0
    with racers(store.url, 1) as (child,):
        for tens in range(6):
            for counter in range(10 * tens, 10 * tens + 10):
                name = retry_on_conflict(begin, store, counter, None)
                retry_on_conflict(commit_written, store, name, store.write_snapshot(sample(counter, balance=counter)))
            names = [name for _, name, _ in store.list()]
            child.stdin.write("retain 1\n")
            assert Store.open(store.url).verify_bytes() == []
            levels = StoreLevels(Store.open(store.url))
            if tens == 0:
                removed += int(child.stdout.readline())  # now it is certain that some are removed
            verdicts = [verdict_or_removal(levels, name) for name in names]
            assert {*verdicts} <= {"holds", "was removed: retention"}
            removed_meanwhile += verdicts.count("was removed: retention")
            if tens:
                removed += int(child.stdout.readline())
    assert removed > 50
    assert removed_meanwhile > 0


def test_the_first_of_racing_removals_and_pins_decides(tmp_path: Path) -> None:
    store = Store.create(tmp_path / "store")
    names = [commit(store, sample(counter)) for counter in range(1, 32)]
    with racers(store.url, 4) as children:
        for name in names[:-1]:
            answers = race(children, [f"{what} {name}" for what in ("remove", "pin", "remove", "pin")])
            is_removed = name not in store.state().committed
            assert answers[::2].count("True") == is_removed
            assert (name in store.state().pinned) == (not is_removed)
        assert race(children, [f"remove {names[-1]}"] * 4) == ["False"] * 4
    removals = [entry.snapshot for _, entry in store.read_log() if isinstance(entry, Remove)]
    assert len(removals) == len({*removals})


def verdict_or_removal(levels: StoreLevels, name: str) -> str:
    try:
        return levels.verify(name, Level.CAUSAL).verdict
    except SnapshotNotFound as error:
        return error.problem.partition(";")[0]


def retry_on_conflict(act: Callable[..., Any], *arguments: object) -> Any:
    """Repeat an action until no other writer was first."""
    while True:
        try:
            return act(*arguments)
        except LogConflict:
            continue


def commit_written(store: Store, name: str, manifest: Manifest) -> None:
    store.commit(name, manifest, store.state().next_position, at_us=0)
