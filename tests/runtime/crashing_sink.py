"""A process with a sink that is killed between any two steps: `python -m tests.runtime.crashing_sink DIRECTORY`.

For each number of steps a child is forked that works until it has taken so many, and is then killed by SIGKILL; it
leaves a directory named after the number. The last child gets to the end. A line is printed for each: step, or `end`.

A child does what a node does: emits records, and now and then takes a snapshot. The file `committed` stands for the
store's log: it has the number of records emitted, the position and the epoch of the newest complete snapshot.
"""

import json
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path

from strobe.runtime.connectors.file_sink import FileSink
from strobe.runtime.connectors.sink_staging import SinkStep

RECORDS = 12
SNAPSHOT_EVERY = 3


def record(number: int) -> dict[str, object]:
    return {"number": number, "text": "x" * number}


def expected() -> bytes:
    return b"".join(json.dumps(record(number), separators=(",", ":")).encode() + b"\n" for number in range(RECORDS))


def work(directory: Path, on_step: Callable[[SinkStep], None] | None = None) -> None:
    """Restore the newest complete snapshot, and go on from there to the end."""
    emitted, position, origin = last_commit(directory)
    sink = FileSink(directory / "audit.jsonl", "a", on_step)
    try:
        sink.restore(position, epoch=origin + 1, origin=origin)
        go_on(directory, sink, emitted, origin + 1)
    finally:
        sink.close()


def go_on(directory: Path, sink: FileSink, emitted: int, epoch: int) -> None:
    snapshots: list[int] = []
    for number in range(emitted, RECORDS):
        sink.emit(record(number))
        if (number + 1) % SNAPSHOT_EVERY == 0:
            sink.prepare(sink.position)
            commit(directory, number + 1, sink.position, epoch)
            snapshots.append(sink.position)
        # The outcome of a snapshot comes some time after the cut: other output is staged meanwhile.
        if snapshots and (number + 1) % SNAPSHOT_EVERY == 1:
            sink.prepare(sink.position)
            sink.release(snapshots.pop())
    for cut in snapshots:
        sink.release(cut)


def last_commit(directory: Path) -> tuple[int, int, int]:
    try:
        emitted, position, epoch = json.loads((directory / "committed").read_text())
    except FileNotFoundError:
        return 0, 0, 0
    return emitted, position, epoch


def commit(directory: Path, emitted: int, position: int, epoch: int) -> None:
    (directory / "new").write_text(json.dumps([emitted, position, epoch]))
    (directory / "new").rename(directory / "committed")


def run_child(directory: Path, fatal: int) -> None:
    """Work until `fatal` steps were taken, and leave word of the last."""
    steps = 0

    def die_at(step: SinkStep) -> None:
        nonlocal steps
        if steps == fatal:
            (directory / "step").write_text(step.name)
            os.kill(os.getpid(), signal.SIGKILL)
        steps += 1

    work(directory, die_at)
    os._exit(0)


def main(root: Path) -> None:
    fatal = 0
    killed = True
    while killed:
        directory = root / f"{fatal:03}"
        directory.mkdir()
        child = os.fork()
        if child == 0:
            run_child(directory, fatal)
        _, status = os.waitpid(child, 0)
        killed = os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL
        print((directory / "step").read_text() if killed else "end", flush=True)  # noqa: T201 -- read by the test
        fatal += 1


if __name__ == "__main__":
    main(Path(sys.argv[1]))
