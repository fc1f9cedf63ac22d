"""The distribution of log entries over tasks."""

import pytest

from strobe.spark.log import partitioning
from strobe.spark.log.partitioning import grouped
from strobe.storage.log.follower import Followed


@pytest.fixture(autouse=True)
def small_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(partitioning, "GROUP_BYTES_MIN", 10)
    monkeypatch.setattr(partitioning, "GROUP_BYTES_MAX", 100)


def sizes(entries: int, entry_bytes: int, groups_wanted: int) -> list[int]:
    followed = [Followed(position, str(position), bytes=entry_bytes) for position in range(entries)]
    groups = list(grouped(followed, groups_wanted))
    assert [entry for group in groups for entry in group] == followed
    return [len(group) for group in groups]


def test_every_core_gets_the_same_number_of_entries() -> None:
    assert sizes(8, 20, 2) == [4, 4]
    assert sizes(9, 20, 4) == [3, 3, 3]


def test_little_data_shares_a_task() -> None:
    assert sizes(8, 1, 4) == [8]
    assert sizes(0, 1, 4) == []


def test_much_data_gives_every_core_the_same_number_of_groups() -> None:
    """With five tasks for two cores, one core would work alone in the end."""
    assert sizes(50, 10, 2) == [9, 9, 9, 9, 9, 5]
