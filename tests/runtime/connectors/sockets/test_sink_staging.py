"""Staged output (R2): a process killed between any two steps neither loses nor doubles a record."""

import pytest
from tests.runtime import crashing_sink
from tests.runtime.connectors.sockets.orders import emit, restored
from tests.runtime.crashing_sink import expected, last_commit, work
from tests.storage.children import start

from strobe.runtime import FileSink
from strobe.runtime.connectors.sink_staging import SinkStep


class Killed(Exception):
    """Stands for the end of the process."""


class Fuse:
    """Raises Killed after this number of steps."""

    def __init__(self, steps: int) -> None:
        self.left = steps

    def __call__(self, step: SinkStep) -> None:
        self.left -= 1
        if self.left < 0:
            raise Killed


@pytest.fixture(scope="module")
def killed(tmp_path_factory):
    """Kill a process at each step of a run; return the directories that they leave, and the names of the steps."""
    root = tmp_path_factory.mktemp("killed")
    child = start(crashing_sink.__name__, str(root))
    output, _ = child.communicate()
    assert child.returncode == 0
    steps = output.split()
    assert steps.pop() == "end"
    return [root / f"{number:03}" for number in range(len(steps))], steps


def test_a_process_is_killed_at_every_kind_of_step(killed):
    _, steps = killed
    assert set(steps) == {step.name for step in SinkStep}


def test_R2_after_a_kill_at_any_step_each_record_is_released_once(killed):
    for directory, step in zip(*killed, strict=True):
        released = (directory / "audit.jsonl").read_bytes() if (directory / "audit.jsonl").exists() else b""
        assert expected().startswith(released), f"killed after {step}: {directory}"
        assert len(released) <= last_commit(directory)[1], "nothing is released that no complete snapshot covers"
        work(directory)
        assert (directory / "audit.jsonl").read_bytes() == expected(), f"killed after {step}: {directory}"


def test_R2_a_recovery_may_be_killed_at_any_step(killed, tmp_path):
    """A run that is killed at later and later steps reaches its end; no record is lost or doubled."""

    for attempt in range(1000):
        try:
            work(tmp_path, Fuse(attempt // 3))
            break
        except Killed:
            pass
    assert attempt > 10
    assert (tmp_path / "audit.jsonl").read_bytes() == expected()


def test_a_fork_that_is_killed_at_any_step_can_be_repeated(tmp_path):
    for fatal in range(40):
        path = tmp_path / f"{fatal}" / "audit.jsonl"
        path.parent.mkdir()
        sink = FileSink(path, "a")
        sink.restore(0, epoch=1)
        first = emit(sink, 1)
        sink.prepare(emit(sink, 2))
        sink.release(sink.position)
        sink.prepare(emit(sink, 3))
        sink.close()
        was_killed = False
        try:
            killed_sink = FileSink(path, "a", Fuse(fatal))
            killed_sink.restore(first, epoch=2, origin=1, fork=True)
        except Killed:
            was_killed = True
        killed_sink.close()
        again = restored(path, first, epoch=3, fork=True)
        position = emit(again, 20)
        again.prepare(position)
        again.release(position)
        assert path.read_bytes() == b"1\n2\n"
        (fork,) = [file for file in path.parent.iterdir() if ".epoch-" in file.name and file.stat().st_size]
        assert fork.read_bytes() == b"20\n"
        again.close()
        if not was_killed:
            break
    else:
        pytest.fail("the fork never got to its end")
