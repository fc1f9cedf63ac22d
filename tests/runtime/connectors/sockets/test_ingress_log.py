"""The ingress log (R2)."""

import os
import threading

import pytest
from tests.runtime import appending
from tests.runtime.connectors.sockets.orders import (
    Order,
    read_all,
)
from tests.storage.children import start

from strobe import Channel, Process, System
from strobe.errors import StrobeError, UsageError
from strobe.runtime import FileSink, FileSource, IngressLog
from strobe.runtime.connectors import ingress_writer
from strobe.runtime.connectors.ingress_format import BEGIN, write_mark
from strobe.runtime.connectors.ingress_writer import Writer


class TestIngressLog:
    @pytest.fixture
    def path(self, tmp_path):
        return tmp_path / "ingress.log"

    def test_appended_records_are_read_from_any_position(self, path):
        log = IngressLog(path)
        positions = [log.append(Order(number)) for number in range(10)]
        assert positions == sorted(set(positions))
        for count, position in enumerate([0, *positions]):
            source = IngressLog(path, "a", Order)
            source.open(position)
            assert read_all(source, 3) == [Order(number) for number in range(count, 10)]
            assert source.position == positions[-1]
            source.close()
        log.close()

    def test_a_reader_follows_the_writer(self, path):
        source = IngressLog(path, "a")
        source.open(0)
        assert source.poll(10) == []
        with_writer = IngressLog(path)
        end = with_writer.append_all([1, 2, 3])
        assert source.poll(2) == [1, 2]
        assert source.position_after(0) == 0
        assert source.position_after(2) == source.position
        assert source.poll(2) == [3]
        assert source.position == end
        with_writer.close()
        source.close()

    def test_threads_that_append_at_once_each_get_their_own_position(self, path):
        log = IngressLog(path)
        positions: dict[int, int] = {}

        def produce(first: int) -> None:
            for number in range(first, first + 25):
                positions[log.append(number)] = number

        threads = [threading.Thread(target=produce, args=(100 * lane,)) for lane in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        log.open(0)
        assert read_all(log) == [positions[position] for position in sorted(positions)]
        assert len(positions) == 200
        log.close()

    def test_R2_an_append_during_close_reaches_only_the_log(self, path, tmp_path, monkeypatch):
        log = IngressLog(path)
        log.append("one")
        append, others = Writer.append, []

        def append_late(writer, payloads):
            if not others:  # this thread already has its writer, when another one closes the log
                log.close()
                others.append(os.open(tmp_path / "other", os.O_RDWR | os.O_CREAT))
                os.write(others[0], b"precious bytes of another file" * 10)
            return append(writer, payloads)

        monkeypatch.setattr(Writer, "append", append_late)
        log.append("two")
        os.close(others[0])
        assert (tmp_path / "other").read_bytes() == b"precious bytes of another file" * 10
        log.open(0)
        assert log.poll(10) == ["one", "two"]
        log.close()

    def test_R2_threads_that_append_while_others_close_lose_nothing(self, path):
        log = IngressLog(path)
        appended = threading.Semaphore(0)

        def produce(first: int) -> None:
            for number in range(first, first + 25):
                log.append(number)
                appended.release()

        threads = [threading.Thread(target=produce, args=(100 * lane,)) for lane in range(4)]
        for thread in threads:
            thread.start()
        for count in range(100):
            appended.acquire()
            if count % 5 == 0:
                log.close()
        for thread in threads:
            thread.join()
        log.open(0)
        assert sorted(read_all(log)) == [100 * lane + number for lane in range(4) for number in range(25)]
        log.close()

    def test_R2_a_rollback_does_not_close_the_writer(self, path):
        log, other = IngressLog(path), IngressLog(path)
        log.append("one")
        log.open(0)
        log.stop_reading()
        with pytest.raises(UsageError, match="being written"):
            other.append("two")
        log.close()
        other.append("two")
        other.close()

    def test_R2_a_torn_tail_is_cut_off_and_appending_continues(self, path):
        log = IngressLog(path)
        log.append_all(["one", "two"])
        log.close()
        whole = path.read_bytes()
        log.append("three")
        log.close()
        longer = path.read_bytes()
        for end in range(len(whole), len(longer)):
            path.write_bytes(whole + longer[len(whole) : end])
            log.append("four")
            log.open(0)
            assert log.poll(10) == ["one", "two", "four"]
            log.close()

    def test_records_that_are_not_durable_yet_are_not_read(self, path):
        log = IngressLog(path)
        end = log.append("one")
        log.append("two")
        log.close()
        with path.open("r+b") as file:
            write_mark(file.fileno(), end)
        log.open(0)
        assert log.poll(10) == ["one"]
        log.close()

    def test_R2_a_header_set_back_by_a_power_cut_loses_nothing_read(self, path):
        log = IngressLog(path)
        first = log.append("one")
        read = log.append_all(["two", "three"])
        log.append("four")
        log.close()
        with path.open("r+b") as file:
            write_mark(file.fileno(), first)
        log.open(read)
        assert log.poll(10) == []  # what follows was not read, and may not have been acknowledged
        log.append("five")
        assert log.poll(10) == ["four", "five"]
        log.close()
        with path.open("r+b") as file:
            write_mark(file.fileno(), first)
            os.pwrite(file.fileno(), b"X", first + 14)
        with pytest.raises(UsageError, match="it was replaced or damaged"):
            log.open(read)

    def test_damage_to_acknowledged_records_is_refused_by_reader_and_writer(self, path):
        log = IngressLog(path)
        log.append_all(["one", "two"])
        log.close()
        with path.open("r+b") as file:
            os.pwrite(file.fileno(), b"X", BEGIN + 14)
        log.open(0)
        with pytest.raises(StrobeError, match="the record at byte 32 is damaged"):
            log.poll(10)
        with pytest.raises(StrobeError, match="the record at byte 32 is damaged, and everything up to byte 64 was ack"):
            log.append("three")

    def test_a_position_behind_the_end_is_refused(self, path):
        log = IngressLog(path, "a")
        end = log.append("one")
        with pytest.raises(UsageError, match="was read up to 1,000: it was replaced or damaged"):
            log.open(1000)
        log.close()
        path.unlink()
        with pytest.raises(UsageError, match="does not exist, but was read up to byte 48"):
            log.open(end)

    def test_R2_acknowledged_records_survive_a_kill_of_the_writer(self, path):
        """The writer is a separate program; after its kill, the log also ends with an incomplete record."""
        child = start(appending.__name__, str(path))
        acknowledged = [int(child.stdout.readline()) for _ in range(20)]
        child.kill()
        child.communicate()
        log = IngressLog(path, "a")
        log.open(0)
        found = read_all(log)
        assert found[:20] == list(range(20))
        assert log.position >= acknowledged[-1]
        with path.open("ab") as file:
            file.write(b"\x05\x00\x00\x00 a torn record")
        log.append("goes on")
        assert read_all(log)[-1] == "goes on"
        log.close()

    def test_one_writer_at_a_time(self, path):
        log = IngressLog(path)
        log.append(1)
        with pytest.raises(UsageError, match="is being written by another process"):
            IngressLog(path).append(2)
        log.close()
        other = IngressLog(path)
        other.append(2)
        other.close()

    @pytest.mark.parametrize("content", [b"{}\n", b"something else that is longer than a header\n"])
    def test_a_file_that_is_no_ingress_log_is_left_alone(self, path, content):
        path.write_bytes(content)
        with pytest.raises(UsageError, match="is not an ingress log"):
            IngressLog(path).append(1)
        assert path.read_bytes() == content

    def test_a_full_disk_fails_one_record_and_the_log_continues(self, path, monkeypatch):
        log = IngressLog(path)
        first = log.append("one")
        real = os.fdatasync
        monkeypatch.setattr(os, "fdatasync", lambda file: (monkeypatch.undo(), real(file), _no_space()))
        with pytest.raises(StrobeError, match="the record was not appended: No space left"):
            log.append("two")
        assert path.stat().st_size == first
        log.append("three")
        log.open(0)
        assert log.poll(10) == ["one", "three"]
        log.close()

    def test_the_next_append_undoes_a_failed_one_that_was_not_undone(self, path, monkeypatch):
        log = IngressLog(path)
        log.append("one")
        failures, real = [1, 2], os.fdatasync
        monkeypatch.setattr(os, "fdatasync", lambda file: failures.pop() and _no_space() if failures else real(file))
        with pytest.raises(StrobeError, match="the record was not appended: No space left"):
            log.append("two")
        assert not failures
        log.append("three")
        log.open(0)
        assert log.poll(10) == ["one", "three"]
        log.close()

    def test_appending_no_records_does_not_hide_an_earlier_failure(self, path, monkeypatch):
        log = IngressLog(path)
        assert log.append_all([]) == 0
        assert not path.exists()
        log.append("one")
        with monkeypatch.context() as full:
            full.setattr(os, "fdatasync", lambda file: _no_space())
            with pytest.raises(StrobeError, match="the record was not appended"):
                log.append("lost")
            assert log._writer._broken
            assert log.append_all([]) == 0
            with pytest.raises(OSError, match="No space"):
                log._writer._write(ingress_writer._Group())
            assert log._writer._broken
        log.append("two")
        log.open(0)
        assert read_all(log) == ["one", "two"]
        log.close()

    def test_a_directory_is_refused_by_name(self, tmp_path):
        log = IngressLog(tmp_path, "a")
        log.open(0)
        with pytest.raises(StrobeError, match=f"ingress log {tmp_path} cannot be read: is a directory, but must be"):
            log.poll(10)
        with pytest.raises(StrobeError, match="cannot be read: is a directory"):
            log.open(100)

    def test_an_interrupt_before_writing_does_not_block_later_appends(self, path, monkeypatch):
        log = IngressLog(path)
        log.append("one")
        with monkeypatch.context() as interrupted:
            interrupted.setattr(ingress_writer, "framed", _interrupt)
            with pytest.raises(KeyboardInterrupt):
                log.append("two")
        log.append("three")
        log.open(0)
        assert log.poll(10) == ["one", "three"]
        log.close()

    def test_R2_a_failed_append_is_not_confirmed_by_earlier_writes(self, path, monkeypatch):
        """The file has the mark of an unacknowledged record, and the next record would have the same mark."""
        log = IngressLog(path)
        log.append("one")
        real = ingress_writer.write_mark
        with monkeypatch.context() as interrupted:
            interrupted.setattr(ingress_writer, "write_mark", lambda *mark: (real(*mark), _interrupt()))
            interrupted.setattr(ingress_writer, "read_mark", _interrupt)  # a second interrupt
            with pytest.raises(KeyboardInterrupt):
                log.append("two")
        with monkeypatch.context() as full:
            full.setattr(ingress_writer, "write_all", _no_space)
            with pytest.raises(StrobeError, match="the record was not appended"):
                log.append("six")
        log.open(0)
        log.append("ten")
        assert log.poll(10) == ["one", "ten"]
        log.close()

    def test_a_log_that_cannot_be_opened_is_named(self, path):
        path.symlink_to(path)
        with pytest.raises(StrobeError, match=rf"ingress log {path} cannot be read: Too many levels"):
            IngressLog(path).open(1)

    @pytest.mark.parametrize("when", ["fdatasync", "write_mark"])
    def test_R2_a_record_readers_may_have_is_appended_despite_an_interrupt(self, path, monkeypatch, when):
        log = IngressLog(path)
        log.append("zero")
        begun, go, outcomes = threading.Event(), threading.Event(), []
        place = os if when == "fdatasync" else ingress_writer
        real = getattr(place, when)

        def interrupted(*arguments):
            real(*arguments)
            if not begun.is_set():
                begun.set()
                assert go.wait(10)
            else:
                monkeypatch.undo()
                raise KeyboardInterrupt

        def append(record):
            try:
                outcomes.append((record, log.append(record)))
            except (StrobeError, KeyboardInterrupt) as error:
                outcomes.append((record, error))

        monkeypatch.setattr(place, when, interrupted)
        threads = [threading.Thread(target=append, args=(name,)) for name in ("one", "two", "three")]
        threads[0].start()
        assert begun.wait(10)
        for thread in threads[1:]:
            thread.start()
        while len(log._writer._group.payloads) < 2:  # both wait for the same sync
            threading.Event().wait(0.001)
        go.set()
        for thread in threads:
            thread.join()
        assert isinstance(dict(outcomes)["one"], int)
        failed = [error for _, error in outcomes if not isinstance(error, int)]
        is_read = when == "write_mark"
        expected = ["KeyboardInterrupt"] if is_read else ["KeyboardInterrupt", "StrobeError"]
        assert sorted(type(error).__name__ for error in failed) == expected
        log.append("four")
        log.close()
        log.append("five")
        log.open(0)
        found = log.poll(10)
        assert sorted(found[2:-2]) == (["three", "two"] if is_read else [])
        assert found[:2] + found[-2:] == ["zero", "one", "four", "five"]
        log.close()


def _no_space(*_: object) -> None:
    raise OSError(28, "No space left on device")


def _interrupt(*_: object) -> None:
    raise KeyboardInterrupt


class TestSystem:
    def test_sources_and_sinks_must_belong_to_a_process_of_the_system(self):
        with pytest.raises(UsageError, match="source 'orders' belongs to the process 'b', which does not exist"):
            System({"a": Process()}, [], sources={"orders": FileSource("orders", "b")})
        with pytest.raises(UsageError, match="sink 'audit' is a FileSource; use one of"):
            System({"a": Process()}, [], sinks={"audit": FileSource("orders", "a")})

    def test_a_source_may_not_have_the_name_of_a_channel(self):
        with pytest.raises(UsageError, match="'a->a' is both a source and a channel"):
            System({"a": Process()}, [Channel("a", "a")], sources={"a->a": FileSource("orders", "a")})

    def test_a_process_emits_into_one_sink(self):
        with pytest.raises(UsageError, match="has the sinks 'x' and 'y'; it can have one"):
            System({"a": Process()}, [], sinks={"x": FileSink("x", "a"), "y": FileSink("y", "a")})
