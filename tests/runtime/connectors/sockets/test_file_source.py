"""A file of JSON lines as a source (R2)."""

import msgspec
import pytest
from tests.runtime.connectors.sockets.orders import (
    Order,
    read_all,
)

from strobe.errors import UsageError
from strobe.runtime import FileSource
from strobe.runtime.connectors.file_source import LINES_MAX


class TestFileSource:
    @pytest.fixture
    def file(self, tmp_path):
        return tmp_path / "orders.jsonl"

    def test_lines_are_decoded_and_a_growing_file_is_followed(self, file):
        file.write_text('{"number":1}\n{"number":2}\n{"num')
        source = FileSource(file, "a", Order)
        source.open(0)
        assert source.poll(100) == [Order(1), Order(2)]
        assert source.poll(100) == []
        with file.open("a") as more:
            more.write('ber":3}\n')
        assert source.poll(100) == [Order(3)]

    def test_a_file_that_does_not_exist_yet_is_waited_for(self, file):
        source = FileSource(file, "a")
        source.open(0)
        assert source.poll(10) == []
        assert source.position == 0
        file.write_text("1\n")
        assert source.poll(10) == [1]

    def test_R2_reading_continues_from_any_position_after_a_rollback(self, file):
        file.write_text("".join(f"{number}\n" for number in range(50)))
        source = FileSource(file, "a")
        source.open(0)
        assert source.poll(20) == list(range(20))
        positions = [source.position_after(count) for count in range(21)]
        assert positions[20] == source.position
        for count, position in enumerate(positions):
            again = FileSource(file, "a")
            again.open(position)
            assert read_all(again, 7) == list(range(count, 50))
            again.close()
        source.close()

    def test_lines_longer_than_a_chunk_are_read_whole(self, file):
        long = ["x" * 300_000, "y" * 700_000, "z"]
        file.write_bytes(b"".join(msgspec.json.encode(text) + b"\n" for text in long))
        source = FileSource(file, "a")
        source.open(0)
        assert read_all(source, 1) == long

    def test_a_malformed_line_stops_the_source_and_is_named(self, file):
        file.write_text('{"number":1}\n{"number":"two"}\n{"number":3}\n')
        source = FileSource(file, "a", Order)
        source.open(0)
        assert source.poll(10) == [Order(1)]
        for _ in range(2):
            with pytest.raises(UsageError, match=r"orders.jsonl, line 2 \(byte 13\): Expected `int`, got `str`"):
                source.poll(10)

    def test_malformed_lines_are_skipped_and_counted_if_configured(self, file):
        file.write_text("1\n\nnonsense\n2\n\xff\n")
        source = FileSource(file, "a", malformed="skip")
        source.open(0)
        assert source.poll(10) == [1, 2]
        assert source.skipped == 3
        assert source.position_after(2) == source.position
        assert source.position & 0xFFFF == file.stat().st_size

    def test_many_malformed_lines_are_skipped_over_several_polls(self, file):
        file.write_text("nonsense\n" * 3 * LINES_MAX + "1\n")
        source = FileSource(file, "a", malformed="skip")
        source.open(0)
        polled = [(source.poll(10), source.skipped, source.position & 0xFFFFFF) for _ in range(4)]
        assert [records for records, _, _ in polled] == [[], [], [], [1]]
        assert [skipped for _, skipped, _ in polled] == [LINES_MAX, 2 * LINES_MAX, 3 * LINES_MAX, 3 * LINES_MAX]
        assert [reached for _, _, reached in polled][:2] == [9 * LINES_MAX, 18 * LINES_MAX]

    def test_R2_a_file_that_was_shortened_is_refused(self, file):
        file.write_text("1\n2\n3\n")
        source = FileSource(file, "a")
        source.open(0)
        read_all(source)
        file.write_text("1\n2\n")
        with pytest.raises(UsageError, match="has 4 bytes, but 6 were read"):
            source.poll(1)
        with pytest.raises(UsageError, match="has 4 bytes, but 6 were read: it was shortened or replaced"):
            source.open(source.position)

    def test_R2_a_replaced_file_is_refused(self, file, tmp_path):
        file.write_text("1\n2\n3\n")
        source = FileSource(file, "a")
        source.open(0)
        read_all(source)
        position = source.position
        (tmp_path / "new").write_text("4\n5\n6\n7\n")
        (tmp_path / "new").rename(file)
        with pytest.raises(UsageError, match="was replaced by another file after 6 bytes"):
            source.poll(1)
        with pytest.raises(UsageError, match="is not the file that was read up to byte 6"):
            source.open(position)

    def test_a_missing_file_is_refused(self, file):
        file.write_text("1\n")
        source = FileSource(file, "a")
        source.open(0)
        read_all(source)
        position = source.position
        source.close()
        file.unlink()
        with pytest.raises(UsageError, match="does not exist, but 2 bytes of it were read"):
            source.open(position)

    def test_an_unknown_policy_is_refused(self, file):
        with pytest.raises(UsageError, match="choose one of: stop, skip"):
            FileSource(file, "a", malformed="ignore")
