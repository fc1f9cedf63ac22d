"""The files of hand-overs (E11): whole, durable, and used at most once."""

from pathlib import Path

import msgspec
import pytest

from strobe.errors import StoreCorrupt
from strobe.storage import Store
from strobe.storage.store.hand_overs import claim_hand_over, read_hand_over, remove_used, write_hand_over
from strobe.storage.store.integrity import verify_bytes


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store.create(tmp_path / "store")


def test_E11_a_hand_over_is_claimed_by_one_successor_only(store: Store) -> None:
    ref = write_hand_over(store.backend, "a b", 1, [b"head", b"state"])
    assert read_hand_over(store.backend, ref) == b"headstate"
    assert claim_hand_over(store.backend, ref, "first")
    assert claim_hand_over(store.backend, ref, "first")  # its answer was lost
    assert not claim_hand_over(store.backend, ref, "second")
    remove_used(store.backend, ref)
    with pytest.raises(StoreCorrupt, match="is missing"):
        read_hand_over(store.backend, ref)
    assert not claim_hand_over(store.backend, ref, "second")


def test_E11_a_process_keeps_its_newest_hand_over_only(store: Store) -> None:
    first = write_hand_over(store.backend, "a", 1, [b"1"])
    claim_hand_over(store.backend, first, "x")
    other = write_hand_over(store.backend, "b", 1, [b"2"])
    second = write_hand_over(store.backend, "a", 1, [b"3"])
    assert store.backend.names("restarts") == sorted([other.name, second.name])


def test_E11_a_store_with_hand_overs_verifies_and_opens(store: Store, tmp_path: Path) -> None:
    write_hand_over(store.backend, "a", 1, [b"1"])
    assert verify_bytes(store.backend) == []
    assert Store.open(tmp_path / "store").header == store.header


def test_E11_a_reference_names_a_file_of_the_store_only(store: Store) -> None:
    ref = write_hand_over(store.backend, "../../etc", 1, [b"1"])
    assert msgspec.convert(msgspec.to_builtins(ref), type(ref)) == ref
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert(msgspec.to_builtins(msgspec.structs.replace(ref, name="../log")), type(ref))
