"""What Spark's checkpoint says of batches: which were given out (`offsets`), and which it knows to be done (`commits`).

Spark does not sync it. The usual trace of a power cut is a last file without its content, over which Spark would fail
each time that it starts.
"""

from pathlib import Path

import msgspec

from strobe.spark.log.offsets import POSITION, Offset

OFFSETS, COMMITS = "offsets", "commits"


def last_batch(directory: Path) -> int:
    """Return the highest number among the batches of `offsets` or `commits`; -1 if there is none."""
    return max(_batches(directory), default=-1)


def offset_after(checkpoint: Path, batch_id: int) -> Offset:
    """Return how far in the log a batch has come."""
    try:
        *_, offset = (checkpoint / OFFSETS / str(batch_id)).read_bytes().splitlines()
        found = msgspec.json.decode(offset, type=Offset)
        return found if found[POSITION] >= 0 else {POSITION: 0}
    except (OSError, ValueError, KeyError, TypeError):
        return {POSITION: 0}  # nothing is done yet, or nothing that can be read; Spark says so itself when it starts


def repair(checkpoint: Path) -> None:
    """Remove what is left without content at the end, and what is noted as done of batches that are not known then."""
    offsets, commits = checkpoint / OFFSETS, checkpoint / COMMITS
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
