"""Verification levels, each including those before it: exists, checksums, causal, invariants, restore (S4).

The first three need only the store, and are here. The others also need the system of the snapshots. They are in
`strobe.runtime.recovery.trial_restore`, and add their checks to the same `Verified`.
"""

from collections.abc import Mapping
from enum import StrEnum
from typing import Any

import msgspec

from strobe.causality.proof import Finding, verify
from strobe.causality.signatures import check_signatures
from strobe.errors import SnapshotError, StoreCorrupt
from strobe.protocol.values.fragment import Snapshot
from strobe.protocol.values.log_entries import BlobRef, Manifest
from strobe.protocol.values.view import View
from strobe.storage.content.blobs import blob_name
from strobe.storage.content.manifests import blobs_of, to_snapshot
from strobe.storage.store.store import Store

HOLDS, VIOLATED, CORRUPT = "holds", "violated", "corrupt"
SIGNER_UNKNOWN = "self-consistent, signer unknown"


class Level(StrEnum):
    """The level of verification, in this order."""

    EXISTS = "exists"
    CHECKSUMS = "checksums"
    CAUSAL = "causal"
    INVARIANTS = "invariants"
    RESTORE = "restore"

    @property
    def included(self) -> "tuple[Level, ...]":
        """This level and those before it."""
        order = tuple(Level)
        return order[: order.index(self) + 1]


class Check(msgspec.Struct, frozen=True):
    """The result of one level. `detail` describes what was checked, even if nothing is wrong."""

    level: Level
    verdict: str
    detail: str
    findings: tuple[Finding, ...] = ()


class Verified(msgspec.Struct, frozen=True):
    """The result of verifying one snapshot, level by level, up to the first level that fails."""

    id: str
    checks: tuple[Check, ...]

    @property
    def verdict(self) -> str:
        return self.checks[-1].verdict

    @property
    def holds(self) -> bool:
        return self.verdict == HOLDS

    @property
    def findings(self) -> tuple[Finding, ...]:
        return self.checks[-1].findings

    def with_check(self, check: Check) -> "Verified":
        return Verified(self.id, (*self.checks, check))


class Signers(msgspec.Struct, frozen=True):
    """Trusted information from outside the store: the public key of each process, and possibly the view (P1)."""

    public_keys: Mapping[str, Any]
    view: View | None = None


class StoreLevels:
    """Verifies snapshots of one store up to the causal proof. A blob shared by several snapshots is read once."""

    def __init__(self, store: Store, signers: Signers | None = None) -> None:
        self._store = store
        self._signers = signers
        self._blobs: dict[tuple[str, bool], str | None] = {}

    def verify(self, snapshot_id: str, level: Level) -> Verified:
        """Return the results of `level` and the levels before it for a complete snapshot, up to the causal proof.

        SnapshotNotFound: there is no such snapshot, or it was removed during the verification.
        """
        identity = self._store.resolve(snapshot_id)
        manifest = self._store.known.committed[identity].manifest
        verified = Verified(identity, ())
        for each in level.included[: tuple(Level).index(Level.CAUSAL) + 1]:
            verified = verified.with_check(self._check(identity, manifest, each))
            if not verified.holds:
                self._store.resolve(identity)  # a snapshot that was removed meanwhile is not damaged
                break
        return verified

    def _check(self, snapshot_id: str, manifest: Manifest, level: Level) -> Check:
        if level is Level.CAUSAL:
            return self._causal(snapshot_id, manifest)
        bytes_too = level is Level.CHECKSUMS
        blobs = {blob_name(ref): ref for ref in blobs_of(manifest)}
        problems = [(name, self._blob_problem(ref, bytes_too)) for name, ref in blobs.items()]
        findings = tuple(Finding("blob", name, problem) for name, problem in problems if problem is not None)
        size = sum(ref.bytes for ref in blobs.values())
        detail = "checksums match" if bytes_too else f"{_count(len(blobs), 'blob')} of {size:,} bytes"
        return Check(level, CORRUPT if findings else HOLDS, detail, findings)

    def _blob_problem(self, ref: BlobRef, checksum: bool) -> str | None:
        key = (blob_name(ref), checksum)
        if key not in self._blobs:
            self._blobs[key] = self._read(ref, checksum)
        return self._blobs[key]

    def _read(self, ref: BlobRef, checksum: bool) -> str | None:
        try:
            self._store.blobs.read(ref) if checksum else self._store.blobs.check_size(ref)
        except StoreCorrupt as error:
            return error.problem.removeprefix(f"{blob_name(ref)}: ")
        return None

    def _causal(self, snapshot_id: str, manifest: Manifest) -> Check:
        """Check the proof and, if keys are given, the signatures."""
        try:
            proof = verify(self._without_states(snapshot_id, manifest))
        except (SnapshotError, StoreCorrupt) as error:  # frames are missing, or do not fit their sections
            finding = Finding("frames", snapshot_id, error.problem)
            return Check(Level.CAUSAL, CORRUPT, "its channel states cannot be read", (finding,))
        findings, signed = list(proof.findings), SIGNER_UNKNOWN
        if self._signers is not None:
            findings += check_signatures(snapshot_id, manifest, self._signers.public_keys, self._signers.view)
            signed = f"signed by all {_count(len(manifest.view.processes), 'process', 'processes')}"
        detail = f"proof on {_count(proof.channels, 'channel')}"
        if findings:
            return Check(Level.CAUSAL, VIOLATED, detail, tuple(findings))
        return Check(Level.CAUSAL, HOLDS, f"{detail} ({signed})")

    def _without_states(self, snapshot_id: str, manifest: Manifest) -> Snapshot:
        """Load the frontiers and frames for the proof. States may be gigabytes, and their checksums verify them."""
        frames = {record.frames for record in manifest.processes.values()}
        read = self._store.blobs.read
        return to_snapshot(
            snapshot_id, manifest, lambda ref: read(ref, checksum=False) if ref in frames else memoryview(b"")
        )


def _count(number: int, what: str, plural: str | None = None) -> str:
    return f"{number:,} {what if number == 1 else plural or what + 's'}"
