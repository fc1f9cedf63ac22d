"""Signatures show who made each part of a snapshot, and nobody else can make them (P1)."""

import sys
from typing import Any

import msgspec
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from strobe.causality.signatures import check_signatures, sign_record, signed_bytes, view_hash
from strobe.declarations import Declared, MessageRule, Waits
from strobe.errors import MissingExtra
from strobe.protocol.values.log_entries import BlobRef, FrontierRecord, Manifest, ProcessRecord, Section
from strobe.protocol.values.view import ChannelSpec, View

SNAPSHOT = "000002-00000007-coordinator"
VIEW = View(3, ("a", "b"), (ChannelSpec("a->b", "a", "b"),))
KEYS = {name: Ed25519PrivateKey.from_private_bytes(name[:1].encode() * 32) for name in ("a", "b", "mallory")}
PUBLIC = {name: KEYS[name].public_key() for name in ("a", "b")}
REPLACE = msgspec.structs.replace


def blob(digit: str, begin: int = 4) -> BlobRef:
    return BlobRef(digit * 64, 10, begin)


A = ProcessRecord(
    position=5,
    encoding="keyed",
    state=blob("1"),
    sent={"a->b": FrontierRecord(9, "c" * 32)},
    received={},
    in_flight={},
    timers=(("tick", 1.5), ("pay", 2.0)),
    random=2**64 - 2,
    deltas=(blob("2"), blob("3")),
    sources={"orders": 12},
    sinks={"out": 3},
    declared=Declared(Waits.any("b", Waits.all("c", times_out=True)), {"y": ("b",), "a": ("y", "x")}, False),
)
B = ProcessRecord(
    position=8,
    encoding="msgpack",
    state=blob("4"),
    sent={},
    received={"a->b": FrontierRecord(7, "d" * 32)},
    in_flight={"a->b": Section(0, 60, 1, 2)},
    frames=blob("5"),
)


def signed(view: View = VIEW) -> Manifest:
    records = {name: sign_record(SNAPSHOT, view, name, record, KEYS[name]) for name, record in (("a", A), ("b", B))}
    return Manifest("chandy-lamport", ("a",), view, 2, 0, 9, records)


def with_record(manifest: Manifest, name: str, **changes: Any) -> Manifest:
    record = REPLACE(manifest.processes[name], **changes)
    return REPLACE(manifest, processes={**manifest.processes, name: record})


def blamed(manifest: Manifest, **options: Any) -> list[str]:
    return [finding.subject for finding in check_signatures(SNAPSHOT, manifest, PUBLIC, **options)]


def test_a_snapshot_signed_by_every_process_holds() -> None:
    assert check_signatures(SNAPSHOT, signed(), PUBLIC) == []


def test_a_signature_survives_encoding_in_the_log() -> None:
    raw = msgspec.json.encode(signed())
    assert check_signatures(SNAPSHOT, msgspec.json.decode(raw, type=Manifest), PUBLIC) == []


def test_times_and_the_places_of_blobs_are_not_signed() -> None:
    moved = with_record(signed(), "a", pause_us=3, duration_us=4, recorded_us=5, state=blob("1", begin=99))
    assert blamed(REPLACE(moved, completed_us=77)) == []


FORGERIES: dict[str, dict[str, Any]] = {
    "position": {"position": 6},
    "encoding": {"encoding": "bytes"},
    "state": {"state": blob("f")},
    "size of the state": {"state": BlobRef("1" * 64, 11, 4)},
    "no deltas": {"deltas": ()},
    "one delta": {"deltas": (blob("2"),)},
    "order of deltas": {"deltas": (blob("3"), blob("2"))},
    "sent count": {"sent": {"a->b": FrontierRecord(8, "c" * 32)}},
    "sent hash": {"sent": {"a->b": FrontierRecord(9, "e" * 32)}},
    "sent on another channel": {"sent": {"b->a": FrontierRecord(9, "c" * 32)}},
    "sent as received": {"sent": {}, "received": {"a->b": FrontierRecord(9, "c" * 32)}},
    "frames from nowhere": {"frames": blob("5")},
    "a section from nowhere": {"in_flight": {"a->b": Section(0, 60, 1, 2)}},
    "timers": {"timers": (("tick", 1.5),)},
    "time left": {"timers": (("tick", 1.25), ("pay", 2.0))},
    "random": {"random": 2**64 - 1},
    "no random": {"random": None},
    "sources": {"sources": {"orders": 13}},
    "sinks": {"sinks": {}},
    "sinks as sources": {"sources": {"out": 3}, "sinks": {"orders": 12}},
    "nothing declared": {"declared": None},
    "another wait": {"declared": REPLACE(A.declared, waits=Waits.any("b"))},
    "other references": {"declared": REPLACE(A.declared, references={})},
    "active": {"declared": REPLACE(A.declared, active=True)},
    "rules of messages": {"declared": REPLACE(A.declared, messages=(MessageRule(grants=True),))},
    "version of the state": {"state_version": 2},
    "no signature": {"signature": None},
    "empty signature": {"signature": ""},
    "not hexadecimal": {"signature": "x" * 128},
    "cut signature": {"signature": "0" * 126},
    "too large to encode": {"position": 2**80},
}


@pytest.mark.parametrize("changes", FORGERIES.values(), ids=FORGERIES)
def test_any_change_of_a_signed_field_is_blamed_on_its_process(changes: dict[str, Any]) -> None:
    assert blamed(with_record(signed(), "a", **changes)) == ["a"]


@pytest.mark.parametrize(
    "changes",
    [{"frames": blob("6")}, {"in_flight": {"a->b": Section(0, 60, 1, 1)}}, {"received": {}}],
    ids=["frames", "section", "received"],
)
def test_a_changed_channel_state_is_found(changes: dict[str, Any]) -> None:
    assert blamed(with_record(signed(), "b", **changes)) == ["b"]


def test_parts_signed_for_another_snapshot_are_refused() -> None:
    findings = check_signatures("000002-00000008-coordinator", signed(), PUBLIC)
    assert [finding.subject for finding in findings] == ["a", "b"]


def test_signatures_do_not_hold_for_another_epoch_or_view() -> None:
    assert [one.subject for one in check_signatures("000003-00000007-coordinator", signed(), PUBLIC)] == ["a", "b"]
    widened = REPLACE(VIEW, processes=("a", "b", "c"))
    assert blamed(REPLACE(signed(), view=widened)) == ["a", "b", "c"]
    renumbered = REPLACE(signed(), view=REPLACE(VIEW, number=4))
    assert blamed(renumbered) == ["a", "b"]


def test_a_channel_cannot_be_given_a_weaker_hash() -> None:
    strong = REPLACE(VIEW, channels=(REPLACE(VIEW.channels[0], hash="blake3"),))
    assert blamed(signed(strong)) == []
    assert blamed(REPLACE(signed(strong), view=VIEW)) == ["a", "b"]
    assert blamed(signed(), expected_view=strong) == ["a->b (a to b, fifo, 1)", "a->b (a to b, fifo, 1, blake3)"]


def test_nobody_else_can_sign_for_a_process() -> None:
    for signer in ("mallory", "b"):
        forged = sign_record(SNAPSHOT, VIEW, "a", A, KEYS[signer])
        assert blamed(with_record(signed(), "a", signature=forged.signature)) == ["a"]


def test_parts_cannot_be_swapped_or_left_out() -> None:
    manifest = signed()
    swapped = {"a": manifest.processes["b"], "b": manifest.processes["a"]}
    assert blamed(REPLACE(manifest, processes=swapped)) == ["a", "b"]
    assert blamed(REPLACE(manifest, processes={"a": manifest.processes["a"]})) == ["b"]
    more = {**manifest.processes, "mallory": manifest.processes["a"]}
    assert blamed(REPLACE(manifest, processes=more)) == ["mallory"]


def test_a_process_without_a_public_key_is_named() -> None:
    findings = check_signatures(SNAPSHOT, signed(), {"a": PUBLIC["a"]})
    assert [str(finding) for finding in findings] == [
        "b: has signed its part, but there is no public key to verify it [signature]"
    ]


def test_a_process_left_out_by_all_others_is_found_by_the_expected_view() -> None:
    """All remaining processes have signed a smaller view. Only a view from outside shows that b is missing."""
    alone = View(3, ("a",), ())
    record = sign_record(SNAPSHOT, alone, "a", REPLACE(A, sent={}), KEYS["a"])
    manifest = Manifest("chandy-lamport", ("a",), alone, 2, 0, 9, {"a": record})
    assert blamed(manifest) == []
    assert blamed(manifest, expected_view=VIEW) == ["b", "a->b (a to b, fifo, 1)"]


def test_an_expected_view_with_the_number_0_has_any_number() -> None:
    assert blamed(signed(), expected_view=REPLACE(VIEW, number=0)) == []
    assert blamed(signed(), expected_view=REPLACE(VIEW, number=9)) == ["view"]
    assert blamed(signed(), expected_view=REPLACE(VIEW, processes=("b", "a"))) == []


def test_the_signed_bytes_are_those_of_the_document() -> None:
    """docs/format.md defines them; they must never change under the same name."""
    raw = signed_bytes(SNAPSHOT, view_hash(VIEW), "b", B)
    assert msgspec.msgpack.decode(raw) == [
        "strobe-fragment-1",
        SNAPSHOT,
        2,
        view_hash(VIEW),
        "b",
        8,
        "msgpack",
        ["4" * 64, 10],
        [],
        [],
        [["a->b", [7, "d" * 32]]],
        ["5" * 64, 10],
        [["a->b", [0, 60, 1, 2]]],
        [],
        None,
        [],
        [],
    ]
    rules = (MessageRule("type", "Fork", grants=True), MessageRule(0, 7, requests=(2,), references=(1,)))
    raw = signed_bytes(SNAPSHOT, view_hash(VIEW), "a", REPLACE(A, declared=REPLACE(A.declared, messages=rules)))
    assert msgspec.msgpack.decode(raw)[17:] == [
        [
            [["b", [["c"], False, True]], True, False],
            [["a", ["y", "x"]], ["y", ["b"]]],
            False,
            [["type", "Fork", True, False, []], [0, 7, False, [2], [1]]],
        ]
    ]
    assert view_hash(VIEW) == "3547b3c54d77555b80acf14eb009560a5b9f572c974cf3e7bb8435669b160db5"


def test_a_missing_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    manifest = signed()
    monkeypatch.setitem(sys.modules, "cryptography.hazmat.primitives.asymmetric.ed25519", None)
    with pytest.raises(MissingExtra, match=r"strobe-snapshots\[sign\]"):
        check_signatures(SNAPSHOT, manifest, PUBLIC)
