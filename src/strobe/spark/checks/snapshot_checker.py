"""The checks of snapshots in a worker (P1, S2, G2): checksums, the proof, signatures, drift, predicates.

A worker gets positions of the log, not manifests, and reads the entries and blobs itself. So it does not rely on
reports of a coordinator, and nothing large passes through Java. It returns a few short rows for each snapshot:

    verdict     one for each check
    violation   one for each finding; `name` is its subject, `text` its detail as JSON
    quarantine  a damaged file; `name` is its address
    gone        the store cannot be reached: this is no finding, and the batch has to be retried
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import msgspec
import pyarrow as pa

from strobe.causality.predicate_input import predicate_input_of
from strobe.causality.proof import Finding, verify
from strobe.causality.signatures import check_signatures
from strobe.errors import SnapshotError, StoreError
from strobe.protocol.values.fragment import Snapshot
from strobe.protocol.values.log_entries import Commit, Manifest
from strobe.protocol.values.view import View
from strobe.spark.checks.drift import DRIFT_CHECKS, Observed, observe
from strobe.spark.checks.predicate_checks import CHECKS, NOTHING_DECLARED
from strobe.spark.log.snapshot_reader import DAMAGE, Damage, SnapshotReader, Unavailable, place_and_problem
from strobe.spark.schema import columns as c
from strobe.storage.entries.log_file import entry_name
from strobe.storage.inspection.fast_proof import fast_accepts
from strobe.storage.inspection.verification import SIGNER_UNKNOWN

VERDICT, VIOLATION, QUARANTINE, GONE = "verdict", "violation", "quarantine", "gone"
ROW_KIND, NAME, TEXT = "row_kind", "name", "text"
PROBLEM, HISTORY = "problem", "history"

COMMIT_BATCH = pa.schema(
    [
        (c.LOG_POSITION, pa.int64()),
        (c.SNAPSHOT_ID, pa.string()),
        (PROBLEM, pa.string()),
        (HISTORY, pa.list_(pa.int64())),
    ]
)
"""A worker's input: a commit or an entry with a problem, and the positions of the commits before it."""

FOUND = pa.schema(
    [
        (c.LOG_POSITION, pa.int64()),
        (c.SNAPSHOT_ID, pa.string()),
        (ROW_KIND, pa.string()),
        (c.CHECK, pa.string()),
        (NAME, pa.string()),
        (TEXT, pa.string()),
    ]
)

Batches = Iterator[pa.RecordBatch]
FoundRow = tuple[int, str | None, str, str | None, str, str | None]

REASON_LINES_MAX = 10
REMOVED = "was removed from the store before it was judged"
UNREAD = "not checked: the snapshot could not be read"


class ExpectedSigners(msgspec.Struct, frozen=True):
    """The 32-byte public key of each process, and the required view of the snapshots, if known."""

    public_keys: dict[str, bytes]
    view: View | None = None

    def keys(self) -> Mapping[str, Any]:
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

        return {process: Ed25519PublicKey.from_public_bytes(raw) for process, raw in self.public_keys.items()}


class Examination(msgspec.Struct, frozen=True):
    """What to examine, and how; plain data, so that it can be sent to workers. The store's header must have `store_id`.

    `predicates` are the names in CHECKS that are evaluated on every snapshot.
    """

    url: str
    store_id: str
    drift_window: int
    signers: ExpectedSigners | None = None
    predicates: tuple[str, ...] = ()

    @property
    def checks(self) -> tuple[str, ...]:
        """The checks that give a verdict on every snapshot."""
        drift = tuple(check.name for check in DRIFT_CHECKS) if self.drift_window else ()
        return (c.PROOF, *drift, *self.predicates)


def checking_function(examination: Examination) -> Callable[[Batches], Batches]:
    """Return the function for `mapInArrow` that turns rows of COMMIT_BATCH into rows of FOUND."""

    encoded = msgspec.json.encode(examination)

    def examine(batches: Batches) -> Batches:
        # Imported in the worker, because the package may have been shipped with the job.
        from strobe.spark.checks.snapshot_checker import Examination, SnapshotChecker

        checker = SnapshotChecker(msgspec.json.decode(encoded, type=Examination))
        for batch in batches:
            yield checker.examine(batch)

    return examine


class SnapshotChecker:
    """Examines snapshots of one store, one after the other. Not thread-safe."""

    def __init__(self, examination: Examination) -> None:
        self._examination = examination
        self._reader = SnapshotReader(examination.url, examination.store_id)
        self._keys = examination.signers.keys() if examination.signers else {}
        self._observed: dict[int, Observed | None] = {}

    def examine(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Turn rows of COMMIT_BATCH into rows of FOUND."""
        found: list[FoundRow] = []
        for commit in zip(*(batch.column(name).to_pylist() for name in COMMIT_BATCH.names), strict=True):
            found += self._examine_one(*commit)
        # The store may have been replaced by another one with the same ids while it was read.
        if found and (absence := self._reader.absence()) is not None:
            found = [(*found[0][:2], GONE, None, self._examination.url, absence)]
        columns = zip(*found, strict=True) if found else [[]] * len(FOUND)
        arrays = [pa.array(column, field.type) for column, field in zip(columns, FOUND, strict=True)]
        return pa.RecordBatch.from_arrays(arrays, schema=FOUND)

    def _examine_one(
        self, position: int, snapshot_id: str | None, problem: str | None, history: Sequence[int]
    ) -> list[FoundRow]:
        if snapshot_id is None:
            return [(position, None, QUARANTINE, None, self._reader.address(entry_name(position)), problem)]
        rows = _Rows(position, snapshot_id)
        try:
            self._examine_commit(rows, history)
        except (StoreError, Unavailable) as error:
            problem = error.problem if isinstance(error, StoreError) else str(error)
            return [(position, snapshot_id, GONE, None, self._examination.url, problem)]
        return rows.found

    def _examine_commit(self, rows: "_Rows", history: Sequence[int]) -> None:
        commit = self._commit(rows.position, rows.snapshot_id)
        if isinstance(commit, Damage):
            self._fail_commit(rows, commit)
            return
        try:
            proven = self._prove(rows, commit.manifest)
            self._check_drift(rows, commit, history)
            if proven is not None:
                self._evaluate_predicates(rows, proven)
        except (StoreError, Unavailable):
            raise
        except Exception as error:  # noqa: BLE001 -- a malformed manifest fails only its own snapshot
            self._fail_commit(rows, Damage(*place_and_problem(error, entry_name(rows.position))))

    def _commit(self, position: int, snapshot_id: str | None = None) -> Commit | Damage:
        try:
            return self._reader.commit(position, snapshot_id)
        except DAMAGE as error:
            return Damage(*place_and_problem(error, entry_name(position)))

    def _fail_commit(self, rows: "_Rows", damage: Damage) -> None:
        """Quarantine a commit that cannot be checked at all."""
        rows.found.clear()
        self._quarantine(rows, [damage])
        rows.error(self._examination.checks[1:], f"not checked: {damage.place} {damage.problem}")

    def _prove(self, rows: "_Rows", manifest: Manifest) -> Snapshot | None:
        """Add the verdict on the proof. Return the snapshot if the proof holds and predicates are to be evaluated."""
        frames, damaged = self._reader.frames(manifest, rows.position)
        if damaged:
            self._refuse(rows, damaged)
            return None
        plain = fast_accepts(manifest, frames.__getitem__)
        snapshot = None
        if not plain or self._examination.predicates:
            snapshot = self._reader.snapshot(rows.snapshot_id, manifest, rows.position, frames)
        if isinstance(snapshot, Damage):
            self._refuse(rows, [snapshot])
            return None
        findings = list(verify(snapshot).findings) if snapshot is not None and not plain else []
        signed = SIGNER_UNKNOWN
        if self._examination.signers is not None:
            findings += check_signatures(rows.snapshot_id, manifest, self._keys, self._examination.signers.view)
            signed = f"signed by all {len(manifest.view.processes)} processes"
        rows.conclude(c.PROOF, findings, signed)
        if not findings:
            return snapshot
        for check in self._examination.predicates:
            rows.verdict(check, c.UNDECIDED, "not checked: the proof does not hold")
        return None

    def _refuse(self, rows: "_Rows", damaged: Sequence[Damage]) -> None:
        """Add the verdicts on an unreadable snapshot."""
        verdict = self._quarantine(rows, damaged)
        for check in self._examination.predicates:
            rows.verdict(check, verdict, UNREAD)

    def _evaluate_predicates(self, rows: "_Rows", snapshot: Snapshot) -> None:
        """Evaluate the stable predicates, which are meaningful only on a consistent cut."""
        if not self._examination.predicates:
            return
        try:
            facts = predicate_input_of(snapshot)
        except SnapshotError as error:
            rows.error(self._examination.predicates, error.problem)
            return
        for check in self._examination.predicates:
            verdict, reason, findings = CHECKS[check](facts) if facts.declares else NOTHING_DECLARED
            rows.verdict(check, verdict, reason)
            rows.violations(check, findings)

    def _quarantine(self, rows: "_Rows", damaged: Sequence[Damage]) -> str:
        """Quarantine the unreadable files, unless the whole store is gone or the snapshot was removed from it.

        Return the verdict on the proof.
        """
        if (absence := self._reader.absence()) is not None:
            raise Unavailable(absence)
        if self._reader.is_removed(rows.snapshot_id, rows.position):
            rows.verdict(c.PROOF, c.UNDECIDED, REMOVED)
            return c.UNDECIDED
        for place, problem in damaged:
            rows.add(QUARANTINE, None, self._reader.address(place), problem)
        rows.error((c.PROOF,), _listed([f"{place}: {problem}" for place, problem in damaged]))
        return c.ERROR

    def _check_drift(self, rows: "_Rows", commit: Commit, history: Sequence[int]) -> None:
        """Check the drift from earlier snapshots, within the epoch and the window."""
        window_max = self._examination.drift_window
        if not window_max:
            return
        current = self._observed[rows.position] = observe(commit)
        before = [self._observe(position) for position in history[-window_max + 1 :]]
        window = [one for one in before if one is not None and one.epoch == current.epoch] + [current]
        for check in DRIFT_CHECKS:
            if len(window) < window_max:
                reason = f"{len(window)} of the {window_max} snapshots that it takes, in epoch {current.epoch}"
                rows.verdict(check.name, c.UNDECIDED, reason)
            else:
                rows.conclude(check.name, list(check.find(window)), f"over {window_max} snapshots")
        for position in [one for one in self._observed if one < (history[0] if history else rows.position)]:
            del self._observed[position]

    def _observe(self, position: int) -> Observed | None:
        if position not in self._observed:
            commit = self._commit(position)
            self._observed[position] = None if isinstance(commit, Damage) else observe(commit)
        return self._observed[position]


class _Rows:
    """The rows of one snapshot."""

    def __init__(self, position: int, snapshot_id: str) -> None:
        self.position = position
        self.snapshot_id = snapshot_id
        self.found: list[FoundRow] = []

    def add(self, kind: str, check: str | None, name: str, text: str | None) -> None:
        self.found.append((self.position, self.snapshot_id, kind, check, name, text))

    def verdict(self, check: str, verdict: str, reason: str) -> None:
        self.add(VERDICT, check, verdict, reason)

    def error(self, checks: Sequence[str], reason: str) -> None:
        for check in checks:
            self.verdict(check, c.ERROR, reason)

    def conclude(self, check: str, findings: Sequence[Finding], holds_because: str) -> None:
        """Add the verdict on one check, and its findings."""
        if not findings:
            self.verdict(check, c.HOLDS, holds_because)
            return
        self.verdict(check, c.VIOLATED, _listed([str(finding) for finding in findings]))
        self.violations(check, findings)

    def violations(self, check: str, findings: Sequence[Finding]) -> None:
        for finding in findings:
            detail = {"problem": finding.problem, "rule": finding.check}
            self.add(VIOLATION, check, finding.subject, msgspec.json.encode(detail).decode())


def _listed(lines: Sequence[str]) -> str:
    more = len(lines) - REASON_LINES_MAX
    return "; ".join(lines[:REASON_LINES_MAX]) + (f"; and {more} more" if more > 0 else "")
