"""What a process hands over, as its successor reads it (E11, E14)."""

from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.protocol.playbook import body, frame, view

from strobe.errors import SnapshotError
from strobe.process import System
from strobe.protocol import PROTOCOLS
from strobe.protocol.coordinator.restart_messages import HandOverRef
from strobe.protocol.process.endpoint_state import state_of
from strobe.protocol.process.events import Marker, MarkerReceived
from strobe.protocol.values.ids import SnapshotId
from strobe.runtime.links.handed_over_ends import ReceivingEnd, SendingEnd
from strobe.runtime.recovery.fragment_loader import Unrestorable
from strobe.runtime.restarts.document import HandOverDocument, HandOverUnusable, QueuedArrival, pack_document
from strobe.runtime.restarts.handing_over import load_hand_over
from strobe.storage import Store
from strobe.storage.store.hand_overs import claim_hand_over, write_hand_over

PAIR = view("p>q", "q>p")


class Count(msgspec.Struct):
    number: int


def halved(state: dict[str, int]) -> dict[str, int]:
    return {"half": state["number"] // 2}


class NextCount(msgspec.Struct):
    migrations = {1: halved}
    half: int


class Another(msgspec.Struct):
    name: str


class Note(msgspec.Struct, tag=True):
    text: str


def document(store: Store, /, **changes: Any) -> HandOverDocument:
    endpoint = PROTOCOLS["chandy-lamport"]("q", PAIR)
    endpoint.number("qp", 2, body(Note("x"), Note("y")))
    fields = {
        "store": store.header.store,
        "process": "q",
        "epoch": 1,
        "protocol": "chandy-lamport",
        "endpoint": state_of(endpoint),
        "sending": {"qp": SendingEnd(3, 2, 90, 60, [bytearray(b"frame 3")], [bytearray(b"frame 4")])},
        "receiving": [ReceivingEnd("pq", 1, 3, None, 4, 70, 50, False)],
        "queued": [
            QueuedArrival("pq", frame(1, Note("a"), Note("b")), 1, 20),
            QueuedArrival("pq", marker=Marker(1, 1, SnapshotId(1, 1, "p"))),
        ],
        "position": 5,
        "encoding": "msgpack",
        "state_version": 1,
        "timers": (("tick", 0.5),),
        "random": 9,
        "sources": {},
        "sinks": {"out": 7},
    }
    return HandOverDocument(**{**fields, **changes})


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store.create(tmp_path / "store")


def written(store: Store, state: Any = None, /, **changes: Any) -> HandOverRef:
    encoded = msgspec.msgpack.encode(Count(3) if state is None else state)
    return write_hand_over(store.backend, "q", 1, pack_document(document(store, **changes), [encoded]))


def load(store: Store, ref: HandOverRef, instance: str = "successor", example: Any = None) -> Any:
    decode = System({}, [], [Note]).decoder.decode
    return load_hand_over(store, ref, "q", 1, "chandy-lamport", instance, example or Count(0), decode)


def test_E11_a_successor_gets_all_that_was_handed_over(store: Store) -> None:
    resumed = load(store, written(store))
    assert resumed.document == document(store)
    assert resumed.state == Count(3)
    assert (resumed.local.position, resumed.local.timers, resumed.local.random) == (5, (("tick", 0.5),), 9)
    assert resumed.document.queued[1].event == MarkerReceived("pq", Marker(1, 1, SnapshotId(1, 1, "p")))


def test_E11_no_other_instance_can_use_it_again(store: Store) -> None:
    ref = written(store)
    load(store, ref)
    with pytest.raises(HandOverUnusable, match="is missing"):
        load(store, ref, "another")


@pytest.mark.parametrize(
    "change", [{"store": "x"}, {"process": "p"}, {"epoch": 2}, {"protocol": "lai-yang"}, {"version": 2}]
)
def test_E11_a_hand_over_of_something_else_is_not_used(store: Store, change: dict[str, Any]) -> None:
    ref = written(store, **change)
    with pytest.raises(HandOverUnusable, match=f"its {next(iter(change))} is"):
        load(store, ref)
    assert claim_hand_over(store.backend, ref, "nobody has claimed it")


def test_E11_every_byte_of_a_hand_over_is_covered_by_its_checksum(store: Store, tmp_path: Path) -> None:
    ref = written(store)
    path = tmp_path / "store" / "restarts" / ref.name
    raw = path.read_bytes()
    for place in range(len(raw)):
        path.write_bytes(raw[:place] + bytes([raw[place] ^ 1]) + raw[place + 1 :])
        with pytest.raises(HandOverUnusable, match="not those that were written"):
            load(store, ref)
    for damaged in (b"", raw[:-1], raw + b"x"):
        path.write_bytes(damaged)
        with pytest.raises(HandOverUnusable):
            load(store, ref)


def test_E11_a_program_that_does_not_fit_leaves_it_to_one_that_does(store: Store) -> None:
    ref = written(store)
    with pytest.raises(Unrestorable, match="does not fit"):
        load(store, ref, "new program", Another("x"))
    assert load(store, ref, "old program").state == Count(3)


def test_E11_R3_a_successor_with_a_later_type_migrates_the_state(store: Store) -> None:
    assert load(store, written(store, Count(8)), example=NextCount(0)).state == NextCount(4)


def test_E11_messages_that_the_program_does_not_know_are_found_before_it_is_used(store: Store) -> None:
    strange = QueuedArrival("pq", frame(1, {"type": "Unknown"}))
    with pytest.raises(SnapshotError, match="in flight does not fit"):
        load(store, written(store, queued=[strange]))
