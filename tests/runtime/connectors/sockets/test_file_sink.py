"""Two-phase sinks (R2): output is released when its snapshot has committed, and each record exactly once."""

import json
import os
import re
import threading
from pathlib import Path
from socket import gethostname

import pytest
from tests.runtime.connectors.sockets.orders import emit, restored

from strobe.errors import StrobeError, UsageError
from strobe.runtime import FileSink
from strobe.runtime.connectors.sink_staging import SinkStep
from strobe.runtime.retry import is_transient


@pytest.fixture
def path(tmp_path):
    return tmp_path / "audit.jsonl"


@pytest.fixture
def sink(path):
    opened = FileSink(path, "a")
    opened.restore(0, epoch=1)
    yield opened
    opened.close()


def staged(path):
    return sorted(file.name for file in Path(f"{path}.staged").iterdir() if file.name.isdigit())


class TestRelease:
    def test_R2_the_released_position_is_known_before_the_sink_is_opened(self, sink, path):
        assert FileSink(path.with_name("other.jsonl"), "a").released == 0
        position = emit(sink, {"n": 1})
        sink.prepare(position)
        assert FileSink(path, "a").released == 0
        sink.release(position)
        assert FileSink(path, "a").released == position
        sink.restore(0, epoch=2, origin=1, fork=True)
        assert FileSink(path, "a").released == 0
        Path(f"{path}.staged", "current").write_bytes(b"?")
        assert FileSink(path, "a").released is None

    def test_R2_output_is_held_back_until_its_snapshot_has_committed(self, sink, path):
        first = emit(sink, {"n": 1}, {"n": 2})
        sink.prepare(first)
        second = emit(sink, {"n": 3})
        assert path.read_bytes() == b""
        sink.release(first)
        assert path.read_bytes() == b'{"n":1}\n{"n":2}\n'
        assert first == len(path.read_bytes())
        sink.prepare(second)
        sink.release(second)
        assert path.read_bytes() == b'{"n":1}\n{"n":2}\n{"n":3}\n'
        assert staged(path) == []

    def test_R2_each_step_is_durable_before_the_next(self, sink, path, monkeypatch):
        """First the epoch, then the content of its first segment, its name, and only then may the snapshot commit.

        Released output is durable before its segment is removed.
        """
        events = []

        def noted(name, call):
            def doing(first, *rest, **how):
                shown = Path(f"/proc/self/fd/{first}").readlink() if isinstance(first, int) else Path(first)
                events.append(f"{name} {shown.name.lstrip('0123456789') or 'segment'}")
                return call(first, *rest, **how)

            return doing

        for name in ("fsync", "fdatasync", "rename", "unlink"):
            monkeypatch.setattr(os, name, noted(name, getattr(os, name)))
        position = emit(sink, 1)
        sink.prepare(position)
        staging = Path(f"{path}.staged").name
        segment = ["fsync .unfinished", "rename .unfinished", f"fsync {staging}"]
        assert events == ["fsync epoch.unfinished", "rename epoch.unfinished", f"fsync {staging}", *segment]
        events.clear()
        position = emit(sink, 2)
        sink.prepare(position)
        assert events == segment
        events.clear()
        sink.release(position)
        assert events == [f"fdatasync {path.name}", "unlink segment", "unlink segment"]

    def test_releasing_twice_does_nothing_more(self, sink, path):
        position = emit(sink, 1)
        sink.prepare(position)
        for _ in range(2):
            sink.release(position)
        assert path.read_bytes() == b"1\n"

    def test_snapshots_may_overlap_and_be_released_in_any_order(self, sink, path):
        first = emit(sink, 1)
        second = emit(sink, 2)
        third = emit(sink, 3)
        sink.prepare(second)
        sink.prepare(first)
        sink.prepare(third)
        sink.release(first)
        assert path.read_bytes() == b"1\n"
        sink.release(third)
        sink.release(second)
        assert path.read_bytes() == b"1\n2\n3\n"

    def test_output_after_the_cut_is_not_staged_with_it(self, sink, path):
        position = emit(sink, 1)
        emit(sink, 2)
        sink.prepare(position)
        assert sink.buffered_bytes == 2
        assert staged(path) == [f"{0:020}"]

    def test_a_record_may_be_changed_after_it_was_emitted(self, sink, path):
        record = {"n": 1}
        position = emit(sink, record)
        record["n"] = 2
        sink.prepare(position)
        sink.release(position)
        assert json.loads(path.read_text()) == {"n": 1}

    def test_emitting_continues_while_another_thread_prepares(self, sink, path):
        done = threading.Event()

        def prepare() -> None:
            while not done.is_set():
                sink.prepare(sink.position)
                sink.release(sink._prepared)

        thread = threading.Thread(target=prepare)
        thread.start()
        for number in range(2000):
            sink.emit(number)
        done.set()
        thread.join()
        sink.prepare(sink.position)
        sink.release(sink.position)
        assert path.read_text() == "".join(f"{number}\n" for number in range(2000))

    def test_a_full_disk_loses_no_output(self, path):
        failing = [True]

        def on_step(step: SinkStep) -> None:
            if failing[0] and step is SinkStep.FILE_WRITTEN:
                raise OSError(28, "No space left on device")

        sink = FileSink(path, "a", on_step)
        sink.restore(0, epoch=1)
        position = emit(sink, 1, 2)
        with pytest.raises(StrobeError, match=r"audit\.jsonl: .*No space left.*output is held back"):
            sink.prepare(position)
        failing[0] = False
        sink.prepare(position)
        sink.release(position)
        assert path.read_bytes() == b"1\n2\n"
        sink.close()

    def test_one_process_writes_at_a_time(self, sink, path):
        with pytest.raises(
            StrobeError, match=rf"is in use by pid {os.getpid()} on host {re.escape(gethostname())},"
        ) as raised:
            FileSink(path, "a").restore(0, epoch=1)
        assert is_transient(raised.value)
        sink.close()
        other = FileSink(path, "a")
        other.restore(0, epoch=1)
        other.close()


class TestRestore:
    def test_R2_a_rollback_discards_output_after_the_snapshot(self, sink, path):
        position = emit(sink, 1)
        sink.prepare(position)
        sink.release(position)
        later = emit(sink, 2)
        sink.prepare(later)
        emit(sink, 3)
        sink.restore(position, epoch=2, origin=1)
        assert staged(path) == []
        end = emit(sink, 4)
        sink.prepare(end)
        sink.release(end)
        assert path.read_bytes() == b"1\n4\n"

    def test_E11_a_successor_releases_nothing_that_no_snapshot_covers(self, sink, path):
        covered = emit(sink, 1)
        sink.prepare(covered)
        sink.release(covered)
        position = emit(sink, 2, 3)
        sink.prepare(position)
        sink.close()
        successor = FileSink(path, "a")
        successor.resume(position, epoch=1)
        assert (successor.position, successor.buffered_bytes, path.read_bytes()) == (position, 0, b"1\n")
        end = emit(successor, 4)
        successor.prepare(end)
        successor.release(end)
        assert path.read_bytes() == b"1\n2\n3\n4\n"
        successor.close()

    def test_E11_a_successor_without_the_output_of_its_predecessor_is_refused(self, sink, path):
        position = emit(sink, 1)
        sink.close()
        successor = FileSink(path, "a")
        with pytest.raises(UsageError, match="neither released nor staged"):
            successor.resume(position, epoch=1)
        restored(path, 0).close()  # it holds no lock

    def test_E11_a_rollback_after_a_restart_discards_what_was_handed_over(self, sink, path):
        covered = emit(sink, 1)
        sink.prepare(covered)
        sink.release(covered)
        position = emit(sink, 2)
        sink.prepare(position)
        sink.close()
        successor = FileSink(path, "a")
        successor.resume(position, epoch=1)
        successor.restore(covered, epoch=2, origin=1)
        assert (staged(path), path.read_bytes()) == ([], b"1\n")
        successor.close()

    def test_R2_an_older_epoch_does_not_discard_output_of_a_later_one(self, sink, path):
        """R2, S1: a process started by a replaced coordinator may come after the one of the leading coordinator."""
        sink.restore(0, epoch=3)
        position = emit(sink, 1)
        sink.prepare(position)
        sink.close()
        with pytest.raises(StrobeError, match="holds output of epoch 3, and this process was ordered to begin epoch 2"):
            restored(path, 0)
        again = restored(path, position, epoch=4, origin=3)
        assert path.read_bytes() == b"1\n"
        again.close()
        restored(path, position, epoch=2).close()  # nothing is staged, so nothing is lost

    def test_R2_a_rollback_completes_the_release_of_staged_output(self, sink, path):
        position = emit(sink, 1, 2)
        sink.prepare(position)
        sink.close()
        again = restored(path, position)
        assert path.read_bytes() == b"1\n2\n"
        again.close()

    @pytest.mark.parametrize("releases", [False, True])
    def test_R2_a_cut_within_durable_output_covers_only_its_part(self, sink, path, releases):
        cut = emit(sink, 1, 2)
        sink.prepare(emit(sink, 3, 4))
        sink.prepare(cut)
        if releases:
            sink.release(cut)
        sink.close()
        again = restored(path, cut)
        assert (path.read_bytes(), staged(path)) == (b"1\n2\n", [])
        end = emit(again, 5)
        again.prepare(end)
        again.release(end)
        assert path.read_bytes() == b"1\n2\n5\n"
        again.close()

    def test_R2_restoring_below_released_output_is_refused(self, sink, path):
        first = emit(sink, 1)
        second = emit(sink, 2)
        sink.prepare(second)
        sink.release(second)
        sink.close()
        with pytest.raises(UsageError, match=r"audit\.jsonl has released 4 bytes, and the snapshot covers 2 of them;"):
            restored(path, first)
        with pytest.raises(UsageError, match="restore a newer snapshot, or fork"):
            restored(path, 0, origin=0)
        assert path.read_bytes() == b"1\n2\n"
        restored(path, second).close()

    def test_R2_a_fork_continues_in_another_file(self, sink, path, tmp_path):
        first = emit(sink, 1)
        sink.prepare(first)
        end = emit(sink, 2)
        sink.prepare(end)
        sink.release(end)
        sink.close()
        forked = restored(path, first, epoch=3, fork=True)
        position = emit(forked, 20, 30)
        forked.prepare(position)
        forked.release(position)
        assert path.read_bytes() == b"1\n2\n"
        assert (tmp_path / "audit.jsonl.epoch-3").read_bytes() == b"20\n30\n"
        forked.close()
        again = restored(path, position, epoch=4, origin=3)
        last = emit(again, 40)
        again.prepare(last)
        again.release(last)
        assert (tmp_path / "audit.jsonl.epoch-3").read_bytes() == b"20\n30\n40\n"
        again.close()

    def test_a_snapshot_that_a_fork_has_abandoned_is_refused(self, sink, path):
        first = emit(sink, 1)
        later = emit(sink, "something long")
        sink.prepare(later)
        sink.release(later)
        sink.close()
        forked = restored(path, first, epoch=2, fork=True)
        emit(forked, "something else that is longer")
        forked.prepare(forked.position)
        forked.close()
        with pytest.raises(UsageError, match="has the output of a fork, and the snapshot is of epoch 1"):
            restored(path, later, epoch=3, origin=1)

    def test_missing_output_is_refused(self, sink, path):
        position = emit(sink, 1, 2)
        sink.prepare(position)
        sink.release(position)
        sink.close()
        path.write_bytes(b"1\n")
        with pytest.raises(UsageError, match="output from byte 2 to 4 is neither released nor staged"):
            restored(path, position)

    def test_a_sink_that_was_refused_can_be_restored_again(self, sink, path):
        position = emit(sink, 1)
        sink.prepare(position)
        sink.release(position)
        with pytest.raises(UsageError, match="fork"):
            sink.restore(0, epoch=2)
        sink.restore(position, epoch=2, origin=1)

    def test_a_missing_directory_is_reported(self, tmp_path):
        with pytest.raises(StrobeError, match=r"nowhere/audit\.jsonl: .*No such file"):
            FileSink(tmp_path / "nowhere" / "audit.jsonl", "a").restore(0, epoch=1)


def test_a_fork_is_created_once_there_is_room_for_its_file(tmp_path, monkeypatch):
    path = tmp_path / "audit.jsonl"
    sink = FileSink(path, "a")
    sink.restore(0, epoch=1)
    first = emit(sink, 1)
    sink.prepare(emit(sink, 2))
    sink.release(sink.position)
    opened = os.open

    def full(file, *arguments):
        if str(file).endswith(".epoch-2"):
            monkeypatch.undo()
            raise OSError(28, "No space left on device")
        return opened(file, *arguments)

    monkeypatch.setattr(os, "open", full)
    with pytest.raises(StrobeError, match="No space left on device"):
        sink.restore(first, epoch=2, origin=1, fork=True)
    sink.restore(first, epoch=2, origin=1, fork=True)
    sink.prepare(emit(sink, 20))
    sink.release(sink.position)
    sink.close()
    assert (tmp_path / "audit.jsonl.epoch-2").read_bytes() == b"20\n"
    assert path.read_bytes() == b"1\n2\n"
