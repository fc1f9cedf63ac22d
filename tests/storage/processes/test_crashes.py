"""S1: a writer killed at any step leaves exactly what was committed, and the next writer continues from there."""

import shutil
import signal
import tempfile
from pathlib import Path

import pytest
from tests.storage import crashing_writer
from tests.storage.children import start
from tests.storage.crashing_writer import NEW, write_new
from tests.storage.samples import commit, sample

from strobe.protocol.values.log_entries import Abort
from strobe.storage import CommitStep, Store, collect

OLD = [sample(1), sample(2, balance=2)]
COMMIT_ENTRY = "log/00000000000000000005.json"


def make_store(root: Path) -> Store:
    store = Store.create(root)
    first = commit(store, OLD[0])
    commit(store, OLD[1], parent=first)
    return store


def every_step() -> list[tuple[CommitStep, str]]:
    """Return every step of the writer in order, found by running it."""
    steps: list[tuple[CommitStep, str]] = []
    with tempfile.TemporaryDirectory() as directory:
        write_new(make_store(Path(directory) / "store").url, lambda step, name: steps.append((step, name)))
    return steps


STEPS = every_step()


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return Path(make_store(tmp_path_factory.mktemp("template") / "store").url)


def test_writers_are_killed_at_every_kind_of_step() -> None:
    assert {step for step, _ in STEPS} == set(CommitStep)
    assert (CommitStep.ENTRY_LINKED, COMMIT_ENTRY) in STEPS


@pytest.mark.parametrize("fatal", range(len(STEPS)), ids=[f"{n}-{step.name}" for n, (step, _) in enumerate(STEPS)])
def test_a_writer_killed_at_any_step_keeps_committed_snapshots(template: Path, tmp_path: Path, fatal: int) -> None:
    root = tmp_path / "store"
    shutil.copytree(template, root)
    child = start(crashing_writer.__name__, str(root), str(fatal))
    child.communicate()
    assert child.returncode == -signal.SIGKILL

    store = Store.open(root)
    committed = fatal >= STEPS.index((CommitStep.ENTRY_LINKED, COMMIT_ENTRY))
    expected = [*OLD, NEW] if committed else OLD
    assert [name for _, name, _ in store.list()] == [str(snapshot.id) for snapshot in expected]
    assert [store.load(str(snapshot.id)) for snapshot in expected] == expected
    assert store.verify_bytes() == []
    _continue(store, expected)


def _continue(store: Store, expected: list) -> None:
    """Do what the next coordinator does: abort open snapshots, take another one, collect."""
    for name in list(store.state().open):
        store.append(Abort(name, "the coordinator crashed", 1), store.state().next_position)
    following = sample(4, balance=4)
    commit(store, following, parent=store.resolve("latest"))
    collect(store)
    assert [store.load(str(snapshot.id)) for snapshot in (*expected, following)] == [*expected, following]
    assert store.verify_bytes() == []
    assert list((Path(store.url) / "tmp").iterdir()) == []
    assert collect(store).names == ()
