"""The judge process: loads the system as nodes do, and answers the coordinator's questions (`judge_process.py`).

    python -m strobe.cli.live.judge_worker SYSTEM STORE BYTES_MAX TIMEOUT_S

Questions arrive as lines of JSON on stdin, and answers go to stdout. The user's functions have neither: their stdin is
empty, and their output goes to the log. The process ends at the end of its input, even in the middle of a question, so
it never outlives its coordinator.
"""

import os
import resource
import signal
import sys
import threading
from functools import partial
from queue import SimpleQueue
from typing import BinaryIO

import msgspec

from strobe.cli.arguments.systems import open_system
from strobe.cli.shell.long_calls import long_calls_noted
from strobe.protocol import Snapshot
from strobe.runtime.judging.evaluation import Evaluator, conditions_of
from strobe.runtime.judging.questions import Question, Ready
from strobe.runtime.settings import CoordinatorSettings
from strobe.storage.content.manifests import to_snapshot
from strobe.storage.log.commit_reader import CommitReader

NICENESS = 10
"""The processes of the system have priority."""


def command_of(system: str, store: str, settings: CoordinatorSettings) -> list[str]:
    """Return the command that starts the judge process for a store."""
    limits = [str(settings.verdict_bytes_max), str(settings.verdict_timeout_s)]
    return [sys.executable, "-m", __name__, system, store, *limits]


def main(system: str, store: str, bytes_max: str, timeout_s: str) -> None:
    questions, answers = _take_pipes()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C ends the coordinator, and that ends this process
    os.nice(NICENESS)
    resource.setrlimit(resource.RLIMIT_AS, (int(bytes_max), resource.RLIM_INFINITY))
    waiting: SimpleQueue[bytes] = SimpleQueue()
    threading.Thread(target=_read, args=(questions, waiting), daemon=True).start()
    with open_system(system) as source, long_calls_noted(way_out="see verdict_timeout_s"):
        loaded = source.load()
        evaluator = Evaluator(loaded, partial(_load, CommitReader(store)), float(timeout_s))
        _write(answers, Ready(conditions_of(loaded)))
        while True:
            question = msgspec.json.decode(waiting.get(), type=Question)
            for evaluation in evaluator.judge(question):
                _write(answers, evaluation)


def _take_pipes() -> tuple[BinaryIO, BinaryIO]:
    """Keep the pipes to the coordinator; give the user's code an empty stdin, and the log as stdout."""
    questions, answers = os.dup(0), os.dup(1)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.dup2(2, 1)
    os.close(nothing)
    return os.fdopen(questions, "rb"), os.fdopen(answers, "wb")


def _read(questions: BinaryIO, waiting: "SimpleQueue[bytes]") -> None:
    for line in questions:
        waiting.put(line)
    os._exit(0)  # the coordinator is gone, and the user's function may run forever


def _write(answers: BinaryIO, document: msgspec.Struct) -> None:
    answers.write(msgspec.json.encode(document) + b"\n")
    answers.flush()


def _load(reader: CommitReader, snapshot: str, position: int) -> Snapshot:
    commit = reader.read_commit_of(snapshot, position)
    return to_snapshot(snapshot, commit.manifest, reader.read_blob)


if __name__ == "__main__":
    main(*sys.argv[1:])
