"""Ids of ended snapshots are stored as runs, and behave like a dictionary."""

from hypothesis import given
from hypothesis import strategies as st

from strobe.protocol import SnapshotId
from strobe.storage.entries.ended_ids import EndedIds

IDS = st.builds(SnapshotId, st.integers(1, 2), st.integers(1, 12), st.sampled_from(["coordinator", "a"])).map(str)


@given(st.lists(st.tuples(IDS, st.sampled_from(["retention", "timed out"])), unique_by=lambda one: one[0]), IDS)
def test_only_added_ids_are_found_each_with_its_reason(added: list[tuple[str, str]], asked: str) -> None:
    ended = EndedIds()
    for snapshot, reason in added:
        ended.add(snapshot, reason)
    assert ended == dict(added)
    assert len(ended) == len(added)
    assert ended.get(asked) == dict(added).get(asked)


def test_ids_that_follow_each_other_are_one_run() -> None:
    ended = EndedIds()
    for counter in (1, 2, 3, 6, 5, 4):
        ended.add(str(SnapshotId(1, counter, "coordinator")), "retention")
    assert [len(runs) for runs in ended._runs.values()] == [1]


def test_a_copy_is_independent_and_has_no_malformed_ids() -> None:
    ended = EndedIds()
    ended.add("000001-00000001-coordinator", "retention")
    later = ended.copy()
    later.add("000001-00000002-coordinator", "retention")
    assert (len(ended), len(later)) == (1, 2)
    assert "latest" not in later
