"""Spark's checkpoint: which batches it has started (`offsets`), and which it has recorded as done (`commits`).

Spark does not sync it. After a power failure, the last file is often empty or zeros, and Spark would fail on it.
"""

from pathlib import Path

import msgspec

from strobe.spark.log.offsets import POSITION, Offset

OFFSETS_DIRECTORY, COMMITS_DIRECTORY = "offsets", "commits"


def last_batch(directory: Path) -> int:
    """Return the highest batch number in `offsets` or `commits`; -1 if there is none."""
    return max(_batches(directory), default=-1)


def offset_after(checkpoint: Path, batch_id: int) -> Offset:
    """Return the offset in the log after a batch."""
    try:
        *_, offset = (checkpoint / OFFSETS_DIRECTORY / str(batch_id)).read_bytes().splitlines()
        found = msgspec.json.decode(offset, type=Offset)
        return found if found[POSITION] >= 0 else {POSITION: 0}
    except (OSError, ValueError, KeyError, TypeError):
        return {POSITION: 0}  # nothing is done yet, or the file is unreadable; then Spark reports it when it starts


def repair(checkpoint: Path) -> None:
    """Remove empty or zeroed files at the end, and then the `commits` of batches that are not in `offsets`."""
    offsets, commits = checkpoint / OFFSETS_DIRECTORY, checkpoint / COMMITS_DIRECTORY
    for directory in (offsets, commits):
        while (last := last_batch(directory)) >= 0 and not (directory / str(last)).read_bytes().strip(b"\0"):
            _remove(directory, last)
    given = last_batch(offsets)
    for batch_id in [found for found in _batches(commits) if found > given]:
        _remove(commits, batch_id)


def _batches(directory: Path) -> list[int]:
    return [int(path.name) for path in directory.glob("[0-9]*") if path.name.isdigit()]


def _remove(directory: Path, batch_id: int) -> None:
    (directory / f".{batch_id}.crc").unlink(missing_ok=True)
    (directory / str(batch_id)).unlink()
