"""A process with a sink that is killed between any two steps: `python -m tests.runtime.crashing_sink DIRECTORY`.

For each step number, a child process is forked, and killed by SIGKILL at that step. It leaves a directory named after
the number. The last child is not killed. For each child one line is printed: its last step, or `end`.

A child does what a node does: it emits records, and takes a snapshot now and then. The file `committed` stands for the
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
    """Restore the newest complete snapshot, and continue from there to the end."""
    emitted, position, origin = last_commit(directory)
    sink = FileSink(directory / "audit.jsonl", "a", on_step)
    try:
        sink.restore(position, epoch=origin + 1, origin=origin)
        emit_records(directory, sink, emitted, origin + 1)
    finally:
        sink.close()


def emit_records(directory: Path, sink: FileSink, emitted: int, epoch: int) -> None:
    snapshots: list[int] = []
    for number in range(emitted, RECORDS):
        sink.emit(record(number))
        if (number + 1) % SNAPSHOT_EVERY == 0:
            sink.prepare(sink.position)
            commit(directory, number + 1, sink.position, epoch)
            snapshots.append(sink.position)
        # A snapshot commits some time after its cut; more output has been staged by then.
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
    """Work until step number `fatal`; there, write the step's name to a file and be killed."""
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
