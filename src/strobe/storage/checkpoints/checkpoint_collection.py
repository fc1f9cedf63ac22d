"""Finds obsolete files: older checkpoints, and segments that were merged into longer ones (S2).

It finds files only if there are more than two checkpoints. The newest two that are complete in every file are kept,
with their segments. Obsolete files are below the older of the two. No later checkpoint will refer to them, because the
ranges of segments are fixed. So a reader finds all files of these two checkpoints or of a later one at any time.
"""

from collections.abc import Iterator
from functools import partial

from strobe.errors import StoreCorrupt
from strobe.storage.checkpoints.checkpoint_files import (
    Checkpoint,
    Loaded,
    checkpoint_position,
    manifest_at,
    newest_first,
    usable,
)
from strobe.storage.checkpoints.commit_segments import (
    COMMITS_KIND,
    DETAILS_KIND,
    CommitSegment,
    segment_end,
    segment_name,
)
from strobe.storage.files.backend import StorageBackend
from strobe.storage.files.layout import CHECKPOINTS

KEPT = 2


def kept(backend: StorageBackend, header: str) -> list[Loaded]:
    """Return the newest two checkpoints that are complete in every file, newest first, or fewer."""
    found: list[Loaded] = []
    for loaded in usable(backend, header, partial(manifest_at, backend), []):
        is_another = not found or loaded.checkpoint.position < found[0].checkpoint.position
        if is_another and _is_whole(backend, loaded.checkpoint):
            found.append(loaded)
        if len(found) == KEPT:
            break
    return found


def superfluous(backend: StorageBackend, header: str) -> list[str]:
    """Return the names of the obsolete checkpoints and segments."""
    if len(newest_first(backend)) <= KEPT:
        return []
    found = kept(backend, header)
    if len(found) < KEPT:
        return []
    needed = {name for loaded in found for name in _segments(loaded.checkpoint)}
    return list(_older(backend, found[-1].checkpoint.position, needed))


def _is_whole(backend: StorageBackend, checkpoint: Checkpoint) -> bool:
    """Return whether the segments that contain only removed commits are valid too."""
    try:
        for ref in checkpoint.segments:
            if not ref.live:
                CommitSegment(backend, ref, partial(manifest_at, backend))
    except StoreCorrupt:
        return False
    return True


def _segments(checkpoint: Checkpoint) -> Iterator[str]:
    for ref in checkpoint.segments:
        yield segment_name(ref.start, ref.end, ref.commits, COMMITS_KIND)
        yield segment_name(ref.start, ref.end, ref.details, DETAILS_KIND)


def _older(backend: StorageBackend, position: int, needed: set[str]) -> Iterator[str]:
    for name in backend.names(CHECKPOINTS):
        at, end = checkpoint_position(name), segment_end(name)
        full = f"{CHECKPOINTS}/{name}"
        if (at is not None and at < position) or (end is not None and end <= position and full not in needed):
            yield full
