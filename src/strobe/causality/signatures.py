"""Signatures: each process signs its part of a snapshot, so that nobody else can forge it (P1).

A signature is Ed25519 over the bytes that `signed_bytes` returns: snapshot, epoch and view, process, the BLAKE3 of its
whole state and of the frames in flight to it, its frontiers, and the rest of its state. Times and blob locations are
left out: they may differ, and do not matter for a restore. docs/format.md has every byte of it.

The public keys, and the view if it must be certain, come from outside the store: anyone who can write the store could
replace them too. A signature does not make a process honest; it shows which process was not.
"""

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import msgspec
from blake3 import blake3

from strobe.causality.proof import Finding
from strobe.declarations import Declared, Waits
from strobe.errors import MissingExtra
from strobe.protocol.values.frames import XXH3
from strobe.protocol.values.ids import SnapshotId
from strobe.protocol.values.log_entries import BlobRef, FrontierRecord, Manifest, ProcessRecord
from strobe.protocol.values.view import ChannelSpec, View

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

FRAGMENT = "strobe-fragment-1"
VIEW = "strobe-view-1"
"""Prefix of the signed bytes, so that they cannot be confused with any other signed data."""

_encode = msgspec.msgpack.Encoder().encode


def require_cryptography() -> None:
    """Raise MissingExtra if signatures can be neither made nor checked."""
    try:
        import cryptography.hazmat.primitives.asymmetric.ed25519  # noqa: F401
    except ImportError as error:
        raise MissingExtra("sign", "signing snapshots, or checking who signed them,") from error


def sign_record(
    snapshot_id: str, view: View, process: str, record: ProcessRecord, private_key: "Ed25519PrivateKey"
) -> ProcessRecord:
    """Return `record`, signed by `process` as its part of the snapshot."""
    signature = private_key.sign(signed_bytes(snapshot_id, view_hash(view), process, record))
    return msgspec.structs.replace(record, signature=signature.hex())


def check_signatures(
    snapshot_id: str,
    manifest: Manifest,
    public_keys: Mapping[str, "Ed25519PublicKey"],
    expected_view: View | None = None,
) -> list[Finding]:
    """Return every defect in the signatures of a snapshot: missing, forged, or of another process or view.

    An `expected_view` with the number 0 matches any number: each rollback gives the view a new one.
    """
    require_cryptography()
    findings = list(_unexpected(manifest.view, expected_view)) if expected_view is not None else []
    hashed = view_hash(manifest.view)
    for process in dict.fromkeys((*manifest.view.processes, *manifest.processes)):
        problem = _problem(snapshot_id, hashed, process, manifest.processes.get(process), public_keys.get(process))
        if problem is not None:
            findings.append(Finding("signature", process, problem))
    return findings


def view_hash(view: View) -> str:
    """Return the BLAKE3 of a view: its number, processes and channels, in their order."""
    channels = [(one.id, one.source, one.target, one.kind, one.incarnation, *_hash(one)) for one in view.channels]
    return blake3(_encode((VIEW, view.number, view.processes, channels))).hexdigest()


def signed_bytes(snapshot_id: str, view_hash: str, process: str, record: ProcessRecord) -> bytes:
    """Return the bytes that `process` signs: one MessagePack array, with maps as arrays of pairs, sorted by key."""
    return _encode(
        (
            FRAGMENT,
            snapshot_id,
            SnapshotId.parse(snapshot_id).epoch,
            view_hash,
            process,
            record.position,
            record.encoding,
            _blob(record.state),
            [_blob(delta) for delta in record.deltas],
            _frontiers(record.sent),
            _frontiers(record.received),
            _blob(record.frames),
            [
                (channel, (one.offset, one.bytes, one.frames, one.messages))
                for channel, one in sorted(record.in_flight.items())
            ],
            [(name, float(after_s)) for name, after_s in sorted(record.timers)],
            # MessagePack integers have at most 64 bits; the state of a random generator may have more.
            str(record.random) if record.random is not None else None,
            sorted(record.sources.items()),
            sorted(record.sinks.items()),
            *_declared(record.declared),
            *_version(record.state_version),
        )
    )


def _problem(
    snapshot_id: str, view_hash: str, process: str, record: ProcessRecord | None, key: "Ed25519PublicKey | None"
) -> str | None:
    from cryptography.exceptions import InvalidSignature

    if record is None:
        return "is in the view, but has no part that could be signed"
    if record.signature is None:
        return "has not signed its part"
    if key is None:
        return "has signed its part, but there is no public key to verify it"
    try:
        key.verify(bytes.fromhex(record.signature), signed_bytes(snapshot_id, view_hash, process, record))
    except (InvalidSignature, ValueError, OverflowError):
        return "did not sign this: its part was changed since, or was signed with another key"
    return None


def _unexpected(view: View, expected: View) -> Iterator[Finding]:
    """Compare the view that the processes signed with the expected one.

    Exactly, unlike `strobe.runtime.recovery.topology`, which decides whether a system fits a store: incarnations are
    signed too, and a process or channel that nobody expected is a finding, not an addition.
    """
    if expected.number and expected.number != view.number:
        yield Finding("view", "view", f"has the number {view.number}, and {expected.number} was expected")
    for what, found, wanted in (
        ("process", set(view.processes), set(expected.processes)),
        ("channel", set(view.channels), set(expected.channels)),
    ):
        for strange in sorted(map(_name, found - wanted)):
            yield Finding("view", strange, f"this {what} is in the snapshot's view, and was not expected")
        for missing in sorted(map(_name, wanted - found)):
            yield Finding("view", missing, f"this {what} was expected, and is not in the snapshot's view")


def _name(one: Any) -> str:
    if isinstance(one, str):
        return one
    what = (f"{one.source} to {one.target}", one.kind, str(one.incarnation), *_hash(one))
    return f"{one.id} ({', '.join(what)})"


def _hash(channel: ChannelSpec) -> tuple[str, ...]:
    """Return the hash of a channel if it is not the default. It is signed, so nobody can replace it by a weaker one."""
    return (channel.hash,) if channel.hash != XXH3 else ()


def _declared(declared: Declared | None) -> Iterator[Any]:
    """Yield the declarations of a process, if it has any: without them, the signed bytes stay unchanged."""
    if declared is not None:
        waits = _waits(declared.waits) if declared.waits is not None else None
        rules = [msgspec.structs.astuple(rule) for rule in declared.messages]
        yield waits, sorted(declared.references.items()), declared.active, rules


def _version(version: int) -> Iterator[int]:
    """Yield the version of the state if it is not the first: the signed bytes of a first version stay unchanged."""
    if version != 1:
        yield version


def _waits(waits: Waits) -> tuple[Any, ...]:
    members = [_waits(member) if isinstance(member, Waits) else member for member in waits.processes]
    return members, waits.any_suffices, waits.times_out


def _blob(ref: BlobRef | None) -> tuple[str, int] | None:
    return (ref.blake3, ref.bytes) if ref is not None else None


def _frontiers(records: dict[str, FrontierRecord]) -> list[tuple[str, tuple[int, str]]]:
    return [(channel, (end.count, end.hash)) for channel, end in sorted(records.items())]
