"""The promises about retention, levels of verification, and signatures."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.runtime.recovery.test_trial_restore import bank, taken
from tests.runtime.recovery.test_trial_restore import commit as commit_bank
from tests.storage import stranger, stranger_signatures
from tests.storage.samples import begin, commit, sample
from tests.storage.signing import commit_signed
from tests.storage.store.test_retention import fold, logs

from strobe.protocol.values.log_entries import Abort, Entry, Pin, Remove
from strobe.runtime.recovery.trial_restore import TrialLevels
from strobe.storage import Store, collect
from strobe.storage.inspection.keys import create_keys, read_public_keys
from strobe.storage.inspection.verification import Level, Signers, StoreLevels
from strobe.storage.store import retention


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store.create(tmp_path / "store")


@pytest.fixture
def keys(tmp_path: Path) -> Path:
    create_keys(tmp_path / "keys", ["a", "b", "c"])
    return tmp_path / "keys"


def append(store: Store, entry: Entry) -> None:
    store.append(entry, store.state().next_position)


def test_E8_only_partial_snapshots_are_collected(store: Store) -> None:
    names = [commit(store, sample(counter, balance=counter)) for counter in (1, 2, 3)]
    append(store, Pin(names[0], True, 0))
    aborted, opened = begin(store, 4, parent=names[1]), begin(store, 5, parent=names[1])
    partial, kept = store.write_blob(aborted, b"partial"), store.write_blob(opened, b"open")
    append(store, Abort(aborted, "crash", 0))
    applied = retention.apply(store, retention.plan(store.state(), 1, 0, 0, 0))
    assert applied.removed == (names[1],)
    assert applied.collected.names == (f"blobs/{partial.begin:020d}/{partial.blake3}",)
    assert store.read_blob(kept) == b"open"
    assert [store.load(name) for name in (names[0], names[2])] == [sample(1, balance=1), sample(3, balance=3)]
    manifest = store.write_snapshot(sample(5, balance=2))
    store.commit(opened, manifest, store.state().next_position, at_us=0)
    collect(store)
    assert store.load(opened) == sample(5, balance=2), "it shares the blobs of its parent, which is removed"


@given(logs(), st.integers(0, 3), st.integers(0, 3), st.integers(0, 3))
def test_E8_retention_counts_globally_complete_snapshots(
    entries: list[Entry], last: int, hourly: int, daily: int
) -> None:
    state = fold(*entries)
    planned = retention.plan(state, last, hourly, daily, 0)
    assert {*planned.kept, *planned.removed} == {*state.committed}
    assert {*list(state.committed)[len(state.committed) - last :]} <= {*planned.kept}
    after = state.preview(Remove(name, "retention", 0) for name in planned.removed)
    assert after.newest_complete == state.newest_complete
    assert state.pinned & {*state.committed} <= {*after.committed}


@pytest.mark.parametrize("level", list(Level))
def test_S4_verification_goes_to_the_requested_level_and_reports_it(store: Store, level: Level) -> None:
    name = commit_bank(store, taken())
    verified = TrialLevels(store, StoreLevels(store), bank).verify(name, level)
    assert verified.holds
    assert tuple(check.level for check in verified.checks) == level.included


def test_P1_signatures_can_be_checked_without_strobe(store: Store, keys: Path) -> None:
    signed, unsigned = commit_signed(store, sample(1), keys), commit(store, sample(2))
    manifests = stranger.complete_snapshots(Path(store.url))
    assert stranger_signatures.unsigned(signed, manifests[signed], keys) == []
    assert stranger_signatures.unsigned(unsigned, manifests[unsigned], keys) == ["a", "b", "c"]
    manifests[signed]["processes"]["b"]["position"] += 1
    assert stranger_signatures.unsigned(signed, manifests[signed], keys) == ["b"]


def test_P1_a_verdict_names_the_signer_only_with_the_keys(store: Store, keys: Path) -> None:
    name = commit_signed(store, sample(1), keys)
    assert "self-consistent, signer unknown" in StoreLevels(store).verify(name, Level.CAUSAL).checks[-1].detail
    levels = StoreLevels(store, Signers(read_public_keys(keys)))
    assert "signed by all 3 processes" in levels.verify(name, Level.CAUSAL).checks[-1].detail
    unsigned = commit(store, sample(2))
    assert [finding.subject for finding in levels.verify(unsigned, Level.CAUSAL).findings] == ["a", "b", "c"]
