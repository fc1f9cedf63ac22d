"""The files of hand-overs (E11): restarts/NAME, and restarts/NAME.taken once a successor has claimed it.

A hand-over appears whole or not at all, and is durable before anyone knows its name. Exactly one successor can create
the claim, so each hand-over is used at most once. A process removes its earlier files when it hands over again.
"""

import secrets
from collections.abc import Sequence

from blake3 import blake3

from strobe.errors import StoreCorrupt
from strobe.protocol.coordinator.restart_messages import HandOverRef
from strobe.storage.content.blobs import digest_of
from strobe.storage.files.backend import StorageBackend
from strobe.storage.files.layout import RESTARTS

_CLAIM_BYTES_MAX = 1000
_TAKEN = ".taken"


def write_hand_over(backend: StorageBackend, process: str, epoch: int, pieces: Sequence[bytes]) -> HandOverRef:
    """Store a hand-over of `process` durably, and remove its earlier ones."""
    backend.guard()
    backend.make_directory(RESTARTS)
    earlier = _files_of(backend, process)
    name = f"{_prefix(process)}{epoch:06d}-{secrets.token_hex(8)}"
    with backend.faults(f"{RESTARTS}/{name}", "write"):
        created = backend.create(f"{RESTARTS}/{name}", pieces)
    assert created, "the name is random"
    backend.sync_directory(RESTARTS)
    backend.remove(earlier)
    return HandOverRef(name, digest_of(pieces), sum(map(len, pieces)))


def read_hand_over(backend: StorageBackend, ref: HandOverRef) -> bytes:
    """Return the bytes of a hand-over; StoreCorrupt if it is not there."""
    place = f"{RESTARTS}/{ref.name}"
    raw = backend.read(place, ref.bytes)
    if raw is None:
        raise StoreCorrupt(backend.url, place, "is missing: this hand-over was used, or removed")
    return raw


def claim_hand_over(backend: StorageBackend, ref: HandOverRef, instance: str) -> bool:
    """Claim a hand-over for `instance`, durably; return whether it is the only one that has."""
    backend.guard()
    place = f"{RESTARTS}/{ref.name}{_TAKEN}"
    claimed = backend.create(place, [instance.encode()]) or backend.read(place, _CLAIM_BYTES_MAX) == instance.encode()
    backend.sync_directory(RESTARTS)
    return claimed


def remove_used(backend: StorageBackend, ref: HandOverRef) -> None:
    """Remove a hand-over that was used. Its claim stays, so that it is never used again."""
    backend.remove([f"{RESTARTS}/{ref.name}"])


def _files_of(backend: StorageBackend, process: str) -> list[str]:
    prefix = _prefix(process)
    return [f"{RESTARTS}/{name}" for name in backend.names(RESTARTS) if name.startswith(prefix)]


def _prefix(process: str) -> str:
    return f"{blake3(process.encode()).hexdigest()[:16]}-"
