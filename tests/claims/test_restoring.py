"""The promise about what a restore checks before it changes anything."""

from pathlib import Path
from typing import Any

import pytest
from tests.runtime.recovery.test_migrated_states import OLD, Broken, First, new, stored, system
from tests.runtime.recovery.test_restore_point import HERE
from tests.storage.samples import commit

from strobe.protocol import View
from strobe.protocol.coordinator.messages import RestoreRefused, SnapshotChosen
from strobe.runtime.recovery.restore_point import Topology, choose
from strobe.storage import Store

SMALLER = Topology("chandy-lamport", (View(1, ("a", "b"), ()),))


@pytest.mark.parametrize(
    ("topology", "states", "refusal"),
    [
        (HERE, new(), None),
        (HERE, (First(0), *new()[1:]), None),
        (HERE, (Broken(0), *new()[1:]), "is of another schema: the state of process 'a' does not fit: the state: "),
        (HERE, (b"", *new()[1:]), "it was captured as msgpack, and capture() now gives bytes"),
        (SMALLER, new(), "is of another topology: the system has no process c"),
    ],
    ids=["migrated", "one of them migrated", "migration fails", "another kind of state", "another topology"],
)
def test_R3_a_restore_checks_topology_and_schema_first(
    tmp_path: Path, topology: Topology, states: Any, refusal: str | None
) -> None:
    store = Store.create(tmp_path / "store")
    name = commit(store, stored(*OLD))
    event = choose(store, name, topology, system=system(*states)).event
    if refusal is None:
        assert isinstance(event, SnapshotChosen)
    else:
        assert isinstance(event, RestoreRefused)
        assert refusal in event.reason
