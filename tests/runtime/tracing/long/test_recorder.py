"""The trace recorder (R4): segments, reading them back, size limits."""

import shutil

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.runtime.tracing.long.recorded_runs import (
    PROTOCOLS,
    open_tracer,
    simulate,
    spoil,
)
from tests.runtime.tracing_host import write_segments

from strobe.causality.cuts import check_cuts
from strobe.causality.trace import Trace, TraceInvalid
from strobe.causality.trace_lines import Receive, Record, Send
from strobe.errors import UsageError
from strobe.protocol import ChannelSpec
from strobe.traces.reading import read_live_trace
from strobe.traces.segments import read_segment


def lines_of(trace: Trace, process: str) -> list:
    """Return the lines of a process; messages that one event sent on several channels are sorted by channel."""
    lines = [line for line in trace.lines() if line.process == process]
    return sorted(lines, key=lambda line: (line.position, *_place(line)))


def _place(line) -> tuple:
    if isinstance(line, Record):
        return 2, "", 0
    return (1, line.channel, line.ordinal) if isinstance(line, Send) else (0, "", 0)


class TestSegments:
    @pytest.mark.parametrize("protocol", PROTOCOLS)
    def test_the_trace_that_is_read_back_is_that_of_the_run(self, protocol, tmp_path):
        recorded = simulate(protocol=protocol)
        live = read_live_trace(write_segments(recorded, tmp_path))
        assert live.trace.violations() == ()
        assert live.left_out == {}
        assert len(live.trace) == len(recorded)
        for process in recorded.processes:
            assert lines_of(live.trace, process) == lines_of(recorded, process)
        assert {verdict.snapshot_id: verdict for verdict in check_cuts(live.trace)} == {
            verdict.snapshot_id: verdict for verdict in check_cuts(recorded)
        }

    def test_a_segment_ends_at_each_snapshot_with_channel_counts(self, recorded, written):
        segments = [read_segment(file).header for file in sorted((written / "a").iterdir())]
        snapshots = [line.snapshot_id for line in recorded.lines() if isinstance(line, Record) and line.process == "a"]
        assert [header.snapshot for header in segments] == [None, *snapshots]
        assert [header.segment for header in segments] == list(range(1, len(segments) + 1))
        for header in segments:
            position = header.begin.position
            before = [line for line in recorded.lines() if line.process == "a" and line.position <= position]
            for channel, count in header.begin.sent.items():
                assert count == sum(isinstance(line, Send) and line.channel == channel for line in before)
            for channel, received in header.begin.received.items():
                assert received.below == sum(isinstance(line, Receive) and line.channel == channel for line in before)

    def test_a_frame_is_one_row_and_not_one_per_message(self, tmp_path):
        tracer = open_tracer(tmp_path, "b", "a->b")
        for frame in range(100):
            tracer.received("a->b", 1 + 256 * frame, 256, 1 + 256 * frame, None)
        tracer.close(wait=True)
        (file,) = tmp_path.glob("epoch-*/*/*.parquet")
        assert pq.read_metadata(file).num_rows == 100
        assert read_segment(file).header.lines == 25_600

    def test_consecutive_events_that_each_forward_a_message_are_one_row(self, tmp_path):
        tracer = open_tracer(tmp_path, "b", "a->b", "b->c")
        tracer.received("a->b", 1, 4, 1, None)
        tracer.sent("b->c", 1, 4, [1, 0, 2, 1, 3, 2, 4, 3], None)
        tracer.close(wait=True)
        (file,) = tmp_path.glob("epoch-*/*/*.parquet")
        rows = [(row["kind"], row["position"], row["ordinal"], row["count"], row["step"]) for row in rows_of(file)]
        assert rows == [("receive", 1, 1, 4, 1), ("send", 1, 1, 4, 1)]

    def test_a_reopened_channel_has_its_own_name(self, tmp_path):
        tracer = open_tracer(tmp_path, "b", "a->b")
        tracer.received("a->b", 1, 2, 1, None)
        tracer.set_channels(("a", "b"), [ChannelSpec("a->b", "a", "b", incarnation=2)], ("a->b",), (), lambda: 0)
        tracer.received("a->b", 1, 1, 3, None)
        tracer.close(wait=True)
        (file,) = tmp_path.glob("epoch-*/*/*.parquet")
        assert [row["channel"] for row in rows_of(file)] == ["a->b", "a->b#2"]

    def test_R4_a_trace_from_a_snapshot_has_inputs_of_isolated_processes(self, tmp_path):
        tracer = open_tracer(tmp_path, "a", level="full")
        tracer.event(1, "start", 0.0)
        tracer.recorded("000001-00000001-a", 1)
        tracer.event(2, "timer t", 1.0)
        tracer.event(3, "timer t", 2.0)
        tracer.close(wait=True)
        rows = [rows_of(file) for file in sorted(tmp_path.glob("epoch-*/*/*.parquet"))]
        # The first event of each segment has inputs, for example the state of the random generator.
        assert [[row["payload"] is not None for row in part] for part in rows] == [[True, False], [True, False]]

    def test_names_of_processes_are_safe_as_directories(self, tmp_path):
        for name in ("..", "a/b", "é"):
            open_tracer(tmp_path, name, "a->b").close(wait=True)
        assert sorted(path.name for path in tmp_path.glob("epoch-000001/*")) == ["%2E.", "%C3%A9", "a%2Fb"]


def rows_of(file):
    return pq.read_table(file).to_pylist()


class TestReading:
    def test_a_trace_without_its_early_part_begins_at_a_snapshot(self, recorded, epoch):
        for process in "abcd":
            first, *_ = sorted((epoch / process).iterdir())
            first.unlink()
        for file in sorted((epoch / "b").iterdir())[:2]:
            file.unlink()
        live = read_live_trace(epoch)
        begins = live.trace.header.start
        assert begins.snapshot is not None
        assert live.trace.violations() == ()
        whole = {verdict.snapshot_id: verdict for verdict in check_cuts(recorded)}
        for verdict in check_cuts(live.trace):
            assert verdict == whole[verdict.snapshot_id]
            assert verdict.snapshot_id > begins.snapshot
        assert check_cuts(live.trace)

    def test_reading_can_start_at_every_complete_snapshot(self, recorded, written):
        complete = [verdict.snapshot_id for verdict in check_cuts(recorded) if not verdict.missing]
        assert len(complete) > 4
        for snapshot in complete:
            live = read_live_trace(written, since=snapshot)
            assert live.trace.header.start.snapshot == snapshot
            assert live.trace.violations() == ()

    def test_reading_begins_late_enough_for_the_line_limit(self, recorded, written):
        whole = len(read_live_trace(written).trace)
        later = read_live_trace(written, lines_max=whole // 2).trace
        assert 0 < len(later) <= whole // 2

    def test_a_missing_segment_is_named(self, epoch):
        (epoch / "c" / "000003.parquet").unlink()
        with pytest.raises(UsageError, match=r"segment 000003\.parquet of process c is missing in .*/c;"):
            read_live_trace(epoch)

    def test_a_missing_process_is_named(self, epoch):
        shutil.rmtree(epoch / "d")
        with pytest.raises(UsageError, match="has no segments of process d"):
            read_live_trace(epoch)

    @pytest.mark.parametrize("keep", [0.0, 0.5, 0.99])
    def test_a_segment_that_is_cut_short_is_named(self, epoch, keep):
        file = epoch / "a" / "000002.parquet"
        data = file.read_bytes()
        file.write_bytes(data[: int(len(data) * keep)])
        with pytest.raises(UsageError, match=r"a/000002\.parquet cannot be read: its end is missing: it was cut short"):
            read_live_trace(epoch)

    def test_a_damaged_segment_is_named(self, epoch):
        file = epoch / "a" / "000002.parquet"
        data = bytearray(file.read_bytes())
        data[4:200] = bytes(196)
        file.write_bytes(data)
        with pytest.raises(UsageError, match=r"a/000002\.parquet cannot be read"):
            read_live_trace(epoch)

    def test_another_parquet_file_is_refused(self, epoch):
        pq.write_table(pa.table({"x": [1]}), epoch / "a" / "000001.parquet")
        with pytest.raises(UsageError, match=r"a/000001\.parquet is not a segment of a trace"):
            read_live_trace(epoch)

    def test_M2_a_changed_ordinal_is_found_and_its_segment_named(self, epoch):
        def change(rows):
            row = next(row for row in rows if row["kind"] == "receive")
            row["ordinal"] += 1

        spoil(epoch / "b" / "000002.parquet", change)
        with pytest.raises(TraceInvalid, match=r"b/000002\.parquet: b, position \d+, channel .->b: message"):
            read_live_trace(epoch).trace.check()

    def test_events_that_depend_on_a_lost_end_are_left_out(self, recorded, tmp_path):
        epoch = write_segments(recorded, tmp_path, close=False)
        last = sorted((epoch / "a").iterdir())[-1]
        end = read_segment(last).header.end.position
        live = read_live_trace(epoch)
        assert live.trace.violations() == ()
        assert live.trace.event_count("a") <= end < recorded.event_count("a")
        assert live.left_out

    def test_a_message_never_sent_by_a_fully_traced_process_is_invalid(self, epoch):
        def change(rows):
            rows[:] = [row for row in rows if row["kind"] != "send"]

        spoil(sorted((epoch / "a").iterdir())[-1], change)
        with pytest.raises(TraceInvalid, match="is received but was never sent"):
            read_live_trace(epoch).trace.check()

    def test_a_directory_without_segments_is_refused(self, tmp_path):
        with pytest.raises(UsageError, match="has no segments of a trace"):
            read_live_trace(tmp_path)
        with pytest.raises(UsageError, match="is not a directory"):
            read_live_trace(tmp_path / "nothing")

    def test_with_several_epochs_one_must_be_named(self, epoch):
        assert read_live_trace(epoch.parent).epoch == 1
        (epoch.parent / "epoch-000002").mkdir()
        with pytest.raises(UsageError, match=r"has several epochs; name one of: .*epoch-000001, .*epoch-000002"):
            read_live_trace(epoch.parent)


class TestBound:
    def run(self, directory, events, snapshot_every, bytes_max):
        tracer = open_tracer(directory, "a", "a->a", bytes_max=bytes_max)
        for position in range(1, events + 1):
            tracer.event(position, f"timer {position * 7919 % 10007}", None)
            tracer.sent("a->a", position, 1, [position, 0], None)
            if position % snapshot_every == 0:
                tracer.recorded(f"000001-{position:08}-a", position)
                tracer._thread.submit(lambda: None).result()
        tracer.close(wait=True)
        return directory / "epoch-000001"

    def test_R4_a_bounded_trace_begins_at_a_snapshot(self, tmp_path):
        epoch = self.run(tmp_path, events=3000, snapshot_every=100, bytes_max=60_000)
        size = sum(file.stat().st_size for file in epoch.rglob("*.parquet"))
        assert 30_000 < size <= 60_000
        trace = read_live_trace(epoch).trace
        assert trace.violations() == ()
        assert trace.header.start.snapshot is not None
        assert trace.event_count("a") == 3000

    def test_a_full_trace_pauses_until_the_next_snapshot(self, tmp_path, monkeypatch):
        monkeypatch.setattr("strobe.runtime.tracing.recorder.LINES_MAX", 200)
        epoch = self.run(tmp_path, events=3000, snapshot_every=2900, bytes_max=40_000)
        trace = read_live_trace(epoch).trace
        assert trace.violations() == ()
        assert trace.header.start.positions == {"a": 2900}
        assert trace.event_count("a") == 3000

    def test_older_epochs_count_and_go_first(self, tmp_path):
        self.run(tmp_path, events=500, snapshot_every=100, bytes_max=1 << 20)
        tracer = open_tracer(tmp_path, "a", "a->a", epoch=2, bytes_max=10_000)
        tracer.event(1, "start", None)
        tracer.close(wait=True)
        assert [path.parent.name for path in tmp_path.glob("epoch-*/a")] == ["epoch-000002"]

    def test_an_unwritable_segment_only_pauses_the_trace(self, tmp_path, monkeypatch):
        """Nor does it prevent the start of a process: here the directory cannot be created at first."""
        (tmp_path / "epoch-000001").write_text("in the way")
        tracer = open_tracer(tmp_path, "a", "a->a")
        tracer.event(1, "start", None)
        tracer.recorded("000001-00000001-a", 1)
        tracer._thread.submit(lambda: None).result()
        (tmp_path / "epoch-000001").unlink()
        tracer.event(2, "timer", None)
        tracer.recorded("000001-00000002-a", 2)
        tracer.close(wait=True)
        assert read_live_trace(tmp_path / "epoch-000001").trace.header.start.snapshot == "000001-00000001-a"

    @pytest.mark.parametrize("record", [1 << 70, object(), "caf\udce9"], ids=["too large", "no value", "no text"])
    def test_an_unencodable_record_only_pauses_a_full_trace(self, tmp_path, caplog, record):
        tracer = open_tracer(tmp_path, "a", "a->a", level="full")
        tracer.event(1, "start", 0.0)
        tracer.event(2, "source in", 0.0, record)
        tracer.event(3, "timer soon", 0.0)
        tracer.recorded("000001-00000001-a", 3)
        tracer.event(4, "source in", 0.0, "plain")
        tracer.close(wait=True)
        live = read_live_trace(tmp_path / "epoch-000001")
        assert live.trace.header.start.positions == {"a": 3}
        assert live.trace.event_count("a") == 4
        assert "the trace pauses until the next snapshot: event 2 cannot be noted" in caplog.text
