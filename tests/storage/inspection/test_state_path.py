"""One value of a recorded state, found by its path."""

from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.storage.keyed_samples import KeyedWriter
from tests.storage.samples import begin, sample

from strobe.errors import SnapshotCorrupt, SnapshotNotFound, UsageError
from strobe.keyed_state import KeyedState
from strobe.protocol.values.fragment import LocalState
from strobe.storage import Store
from strobe.storage.content.blobs import blob_name
from strobe.storage.inspection.state_path import find_value, parse_path


class Account(msgspec.Struct):
    owner: str
    history: list[int] = []


STATE = {"account": {"amount": 5, "history": [3, {"7": "seven", "to": None}]}, "7": "digits"}


@pytest.fixture(scope="module")
def keyed(tmp_path_factory: pytest.TempPathFactory) -> Store:
    """A base of many accounts, and a delta that changes, deletes and adds some."""
    store = Store.create(tmp_path_factory.mktemp("keyed") / "store")
    state: KeyedState[Account] = KeyedState(Account)
    state.update({number: Account(f"owner {number}", [number]) for number in range(140_000, 140_600)})
    others = {"ada": "Ada", "grace": "Grace", b"\x00raw": "bytes", "140001": "text"}
    state.update({key: Account(owner) for key, owner in others.items()})
    writer = KeyedWriter(store, state)
    writer.commit(1)
    state[140_525] = Account("changed", [8, 9])
    del state[140_526], state["grace"]
    state["alan"] = Account("Alan")
    writer.commit(2)
    assert writer.record is not None
    assert writer.record.deltas
    return store


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Store:
    """States of process a: a struct; of c: bytes."""
    store = Store.create(tmp_path_factory.mktemp("plain") / "store")
    snapshot = sample(1)
    local = snapshot.fragments["a"].state
    assert local is not None
    state = LocalState(local.position, local.encoding, msgspec.msgpack.encode(STATE))
    snapshot.fragments["a"] = msgspec.structs.replace(snapshot.fragments["a"], state=state)
    name = begin(store, 1)
    store.commit(name, store.write_snapshot(snapshot), store.state().next_position, at_us=30)
    return store


@pytest.mark.parametrize(
    ("path", "keys", "value"),
    [
        ("a[140525]", (140_525,), {"owner": "changed", "history": [8, 9]}),
        ("a[+140001].owner", (140_001, "owner"), "owner 140001"),
        ('a["140001"].owner', ("140001", "owner"), "text"),
        ("a[ada].owner", ("ada", "owner"), "Ada"),
        ("a['ada'].owner", ("ada", "owner"), "Ada"),
        ("a.alan.owner", ("alan", "owner"), "Alan"),
        ('a[b"\\x00raw"].owner', (b"\x00raw", "owner"), "bytes"),
        ("a[140525].history[-1]", (140_525, "history", -1), 9),
    ],
)
def test_a_key_of_a_keyed_state_is_found(keyed: Store, path: str, keys: tuple[Any, ...], value: object) -> None:
    found = find_value(keyed, "latest", path)
    assert (found.process, found.keys, found.value) == ("a", keys, value)


def test_each_snapshot_has_its_own_value(keyed: Store) -> None:
    assert find_value(keyed, "1.1", "a[140526].owner").value == "owner 140526"
    assert find_value(keyed, "1.1", "a[140525].owner").value == "owner 140525"
    with pytest.raises(SnapshotNotFound):
        find_value(keyed, "1.3", "a[140526]")


@pytest.mark.parametrize(
    ("path", "problem"),
    [
        ("a[140526]", r"a has no key 140526; near it are \[140525\], \[140527\], \[140524\]"),
        ("a[adda]", r"a has no key 'adda'; near it are \['ada'\]"),
        ("a[zz]", r"near it are \['alan'\]"),
        ('a[b"x"]', r"""near it are \[b'\\x00raw'\]"""),
        ("a[140001]", r'both as an integer and as a string; write \["140001"\] for the string, \[\+140001\]'),
        ("a", r"name a key, as in a\[KEY\]"),
        ("a[ada].owned", r"a\['ada'\] has no field 'owned'; near it are owner, history"),
        ("a[ada].owner.x", r"a\['ada'\]\['owner'\] is of type str"),
        ("a[140525].history[2]", "is a list of 2 elements, without 2"),
    ],
)
def test_what_is_not_found_is_named_with_what_is_near(keyed: Store, path: str, problem: str) -> None:
    with pytest.raises(UsageError, match=problem):
        find_value(keyed, "latest", path)


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("a", STATE),
        ("a.account.amount", 5),
        ("a.account.history[1].to", None),
        ("a.account.history[1][7]", "seven"),
        ("a[7]", "digits"),
    ],
)
def test_a_field_of_a_struct_is_found(plain: Store, path: str, value: object) -> None:
    assert find_value(plain, "latest", path).value == value


@pytest.mark.parametrize(
    ("path", "problem"),
    [
        ("e.balance", "begins with no process of the snapshot, which has a, b, c"),
        ("ab", "begins with no process"),
        ("a.", "cannot be read from '.' on"),
        ("a[", r"cannot be read from '\[' on; a path looks like"),
        ("a[]", "cannot be read"),
        ('a["x]', "cannot be read"),
        ('a["\\x"]', "is not a text in quotes"),
        ("a.acount", r"a has no field 'acount'; near it are account, 7"),
        ("a.account.history[1].to.amount", r"\['to'\] is nothing, and has nothing inside"),
    ],
)
def test_a_wrong_path_is_refused(plain: Store, path: str, problem: str) -> None:
    with pytest.raises(UsageError, match=problem):
        find_value(plain, "latest", path)


def test_a_process_may_have_dots_and_brackets_in_its_name() -> None:
    names = ["a", "a.b", "a[1]"]
    assert parse_path("a.b.c", names) == ("a.b", [("c",)])
    assert parse_path("a[1][2]", names) == ("a[1]", [(2, "2")])
    assert parse_path("a.bc", names) == ("a", [("bc",)])


def test_a_damaged_state_is_reported_as_damage(keyed: Store) -> None:
    name = begin(keyed, 9)
    manifest = keyed.write_snapshot(sample(9, balance=77))
    keyed.commit(name, manifest, keyed.state().next_position, at_us=30)
    (Path(keyed.url) / blob_name(manifest.processes["a"].state)).write_bytes(b"garbage")
    with pytest.raises(SnapshotCorrupt, match="blobs/"):
        find_value(keyed, "1.9", "a.balance")
