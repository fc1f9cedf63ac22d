"""Recorded epochs (R4): rollbacks, processes that rejoin, replay, commands."""

import shutil

import msgspec
import pytest
from tests.cli.command_line import refused, run
from tests.runtime.tracing.long.recorded_runs import (
    open_tracer,
    spoil,
    system,
)

from strobe import Channel, Process, System
from strobe.causality.cuts import check_cuts
from strobe.errors import UsageError
from strobe.protocol import ChannelSpec, Fragment, Frame, Frontier, InFlight, LocalState, SnapshotId
from strobe.protocol.values.ids import short_name
from strobe.runtime import FileSource
from strobe.runtime.tracing import segment_writer
from strobe.runtime.tracing.recorder import Tracer
from strobe.runtime.tracing.segment_writer import TraceWriter
from strobe.simulation.replay import Replay, compare_along
from strobe.traces.reading import read_live_trace
from strobe.traces.segments import read_segment, write_segment

FIRST, BETWEEN, SECOND = (f"000001-0000000{number}-coordinator" for number in (1, 2, 3))


def rejoin(directory, bytes_max=1 << 30):
    """Write the traces of a and of b, which leaves and rejoins, with a snapshot before, between and after."""
    a = open_tracer(directory, "a", "a->b", "b->a")
    b = open_tracer(directory, "b", "a->b", "b->a")
    a.event(1, "start", None)
    a.sent("a->b", 1, 1, [1, 0], None)
    b.received("a->b", 1, 1, 1, None)
    b.sent("b->a", 1, 3, [1, 0], None)
    b.recorded(FIRST, 1)
    a.received("b->a", 1, 3, 2, None)
    a.recorded(FIRST, 4)
    b.event(2, "leave", None)
    b.sent("b->a", 4, 1, [2, 0], None)
    b.close(wait=True)
    a.received("b->a", 4, 1, 5, None)
    a.recorded(BETWEEN, 5)
    again = Tracer(TraceWriter(directory, "b", 1, "ordinals", bytes_max, joined=3), full=False)
    specs = [ChannelSpec(name, *name.split("->"), incarnation=2) for name in ("a->b", "b->a")]
    for tracer in (a, again):
        tracer.set_channels(("a", "b"), specs, (), (), lambda: 7)
    again.event(1, "start", None)
    again.sent("b->a", 1, 2, [1, 0], None)
    again.recorded(SECOND, 1)
    a.received("b->a", 1, 2, 6, None)
    a.event(8, "timer", None)
    a.sent("a->b", 1, 1, [8, 0], None)
    a.recorded(SECOND, 8)
    again.received("a->b", 1, 1, 2, None)
    a.close(wait=True)
    again.close(wait=True)


class TestEpochs:
    def test_R1_after_a_rollback_a_trace_begins_at_the_restored_snapshot(self, tmp_path):
        """The sender was restored after 5 messages, the receiver after 2 of them, one frame half consumed."""
        snapshot = SnapshotId.parse("000001-00000009-coordinator")
        flying = (InFlight(Frame(2, 2, b""), 1), InFlight(Frame(4, 2, b"")))
        sender = Fragment(snapshot, "a", 1, {"a->b": Frontier(5, b"")}, {}, {}, LocalState(3, "bytes", b""))
        receiver = Fragment(
            snapshot, "b", 1, {}, {"a->b": Frontier(2, b"")}, {"a->b": flying}, LocalState(2, "bytes", b"")
        )
        a = open_tracer(tmp_path, "a", "a->b", epoch=2, begun=sender)
        a.event(4, "timer", None)
        a.sent("a->b", 6, 1, [4, 0], None)
        a.close(wait=True)
        b = open_tracer(tmp_path, "b", "a->b", epoch=2, begun=receiver)
        for ordinal in (3, 4, 5, 6):
            b.received("a->b", ordinal, 1, ordinal, None)
        b.close(wait=True)
        live = read_live_trace(tmp_path / "epoch-000002")
        assert live.trace.violations() == ()
        start = live.trace.header.start
        assert (start.snapshot, start.positions, start.sent) == (str(snapshot), {"a": 3, "b": 2}, {"a->b": 5})
        assert start.in_flight == {"a->b": ((3, 3),)}

    def test_messages_in_flight_on_an_unordered_channel_may_have_gaps(self, tmp_path):
        snapshot = SnapshotId.parse("000001-00000009-coordinator")
        flying = (InFlight(Frame(4, 1, b"")), InFlight(Frame(1, 2, b"")))
        receiver = Fragment(
            snapshot, "b", 1, {}, {"a->b": Frontier(3, b"")}, {"a->b": flying}, LocalState(3, "bytes", b"")
        )
        sender = Fragment(snapshot, "a", 1, {"a->b": Frontier(6, b"")}, {}, {}, LocalState(3, "bytes", b""))
        open_tracer(tmp_path, "a", "a->b", epoch=2, begun=sender, kind="unordered").close(wait=True)
        b = open_tracer(tmp_path, "b", "a->b", epoch=2, begun=receiver, kind="unordered")
        b.received("a->b", 4, 1, 4, None)
        b.recorded("000002-00000001-b", 4)
        b.received("a->b", 1, 2, 5, None)
        b.close(wait=True)
        trace = read_live_trace(tmp_path / "epoch-000002").trace
        assert trace.header.start.in_flight == {"a->b": ((1, 2), (4, 1))}
        assert trace.violations() == ()
        last = read_segment(tmp_path / "epoch-000002" / "b" / "000002.parquet").header
        assert last.begin.received["a->b"].below == 0
        assert last.begin.received["a->b"].ahead == ((3, 1), (4, 1), (5, 2))

    def test_an_epoch_begins_once(self, tmp_path):
        for _ in range(2):
            tracer = open_tracer(tmp_path, "a", "a->a")
            tracer.event(1, "start", None)
            tracer.close(wait=True)
        assert len(list(tmp_path.glob("epoch-000001/a/*"))) == 1

    def test_E2_R4_a_rejoined_process_has_its_own_part_of_the_trace(self, tmp_path):
        rejoin(tmp_path)
        live = read_live_trace(tmp_path / "epoch-000001")
        assert live.trace.violations() == ()
        assert live.left_out == {}
        assert live.trace.processes == ("a", "b", "b#2")
        assert live.trace.header.lives == {"b#2": "b"}
        ends = {name: (spec.source, spec.target) for name, spec in live.trace.channels.items()}
        assert ends == {"a->b": ("a", "b"), "b->a": ("b", "a"), "a->b#2": ("a", "b#2"), "b->a#2": ("b#2", "a")}
        # A cut includes all events of earlier memberships of a process, and none of later ones.
        assert [(verdict.snapshot_id, verdict.verdict, verdict.cut) for verdict in check_cuts(live.trace)] == [
            (FIRST, "holds", {"a": 4, "b": 1, "b#2": 0}),
            (BETWEEN, "undecided", {"a": 5}),
            (SECOND, "holds", {"a": 8, "b": 2, "b#2": 1}),
        ]
        verified = run("trace", "verify", tmp_path / "epoch-000001", "--json")
        assert (verified.code, verified.document["processes"]) == (0, ["a", "b", "b#2"])

    @pytest.mark.parametrize("snapshot", [1, 2, 3])
    def test_E2_R4_a_trace_with_a_rejoin_begins_at_any_snapshot(self, tmp_path, snapshot):
        rejoin(tmp_path)
        name = (FIRST, BETWEEN, SECOND)[snapshot - 1]
        trace = read_live_trace(tmp_path / "epoch-000001", since=name).trace
        assert trace.violations() == ()
        positions = ({"a": 4, "b": 1}, {"a": 5, "b": 2}, {"a": 8, "b": 2, "b#2": 1})[snapshot - 1]
        assert trace.header.start.positions == positions

    def test_a_lost_end_of_an_earlier_membership_makes_cuts_undecided(self, tmp_path):
        rejoin(tmp_path)
        for file in sorted((tmp_path / "epoch-000001" / "b").iterdir())[1:]:
            file.unlink()  # its last messages are unknown
        live = read_live_trace(tmp_path / "epoch-000001")
        assert live.trace.violations() == ()
        assert live.left_out == {"a": 4, "b#2": 1}
        verdicts = {verdict.snapshot_id: verdict.verdict for verdict in check_cuts(live.trace)}
        assert verdicts == {FIRST: "holds", BETWEEN: "undecided", SECOND: "undecided"}

    def test_a_rejoined_process_gets_a_name_that_no_process_has(self, tmp_path):
        rejoin(tmp_path)
        open_tracer(tmp_path, "b#2").close(wait=True)
        assert read_live_trace(tmp_path / "epoch-000001").trace.processes == ("a", "b", "b#2#", "b#2")

    def test_earlier_memberships_count_and_keep_only_their_end(self, tmp_path):
        rejoin(tmp_path, bytes_max=1)
        epoch = tmp_path / "epoch-000001"
        assert [path.name for path in sorted(epoch.glob("b/*"))] == ["000002.parquet"]
        assert read_segment(epoch / "b" / "000002.parquet").header.lines == 0
        trace = read_live_trace(epoch).trace
        assert trace.header.start.positions == {"a": 8, "b": 2, "b#2": 1}
        assert trace.violations() == ()

    def test_R4_a_removed_earlier_membership_does_not_begin_a_trace(self, tmp_path):
        a, b = open_tracer(tmp_path, "a", "b->a"), open_tracer(tmp_path, "b", "b->a")
        a.event(1, "start", None)
        b.event(1, "start", None)
        b.sent("b->a", 1, 3, [1, 0], None)
        b.event(2, "leave", None)
        b.close(wait=True)
        a.received("b->a", 1, 3, 2, None)
        again = Tracer(TraceWriter(tmp_path, "b", 1, "ordinals", 1, joined=3), full=False)
        for tracer in (a, again):
            tracer.set_channels(("a", "b"), [ChannelSpec("b->a", "b", "a", incarnation=2)], (), (), lambda: 7)
        again.event(1, "start", None)
        again.sent("b->a", 1, 2, [1, 0], None)
        again.recorded(SECOND, 1)
        a.received("b->a", 1, 2, 5, None)
        a.recorded(SECOND, 6)
        again.event(2, "timer", None)
        for tracer in (a, again):
            tracer.close(wait=True)
        assert read_live_trace(tmp_path / "epoch-000001").trace.header.start.snapshot == SECOND

    def test_R4_a_writer_killed_while_shortening_leaves_a_readable_trace(self, tmp_path, monkeypatch):
        unlinked = []

        def stop(path, header, rows):
            if path.parent.name == "b" and header.lines == 0:
                raise OSError("stopped")
            return write_segment(path, header, rows)

        monkeypatch.setattr(segment_writer, "write_segment", stop)
        monkeypatch.setattr(segment_writer.shutil, "rmtree", lambda path, **_: unlinked.append(path))
        rejoin(tmp_path, bytes_max=1)
        epoch = tmp_path / "epoch-000001"
        assert epoch / "b" in unlinked
        assert [path.name for path in epoch.glob("b/*")] == ["000002.parquet"]
        assert read_live_trace(epoch).trace.violations() == ()

    def test_segments_are_read_in_order_beyond_a_million(self, tmp_path):
        tracer = open_tracer(tmp_path, "a", "a->a")
        tracer._writer._number = 999_997
        for position in range(1, 5):
            tracer.event(position, "timer", None)
            tracer.recorded(f"000001-{position:08}-a", position)
        tracer.close(wait=True)
        first = "000001-00000001-a"
        assert read_live_trace(tmp_path / "epoch-000001", since=first).trace.header.start.snapshot == first
        assert read_live_trace(tmp_path / "epoch-000001", since=short_name(first)).trace.header.start.snapshot == first

    def test_a_process_begins_despite_unrelated_files_among_its_traces(self, tmp_path):
        (tmp_path / "epoch-000001").mkdir()
        (tmp_path / "epoch-000001" / "a").touch()
        open_tracer(tmp_path, "a", epoch=2).close(wait=True)
        open_tracer(tmp_path, "é" * 60, epoch=2).close(wait=True)
        assert [path.name for path in (tmp_path / "epoch-000002").iterdir()] == ["a"]

    def test_an_epoch_without_traces_keeps_no_directory(self, tmp_path):
        open_tracer(tmp_path, "a", "a->a").close(wait=True)
        open_tracer(tmp_path, "a", "a->a", epoch=2, bytes_max=1).close(wait=True)
        assert not (tmp_path / "epoch-000001").exists()

    def test_a_process_that_left_before_the_cut_is_not_missing_after_it(self, tmp_path):
        gone = open_tracer(tmp_path, "a", "a->b")
        gone.event(1, "start", None)
        gone.sent("a->b", 1, 2, [1, 0], None)
        gone.close(wait=True)
        stays = open_tracer(tmp_path, "b", "a->b")
        stays.received("a->b", 1, 2, 1, None)
        stays.recorded("000001-00000001-b", 2)
        stays.event(3, "timer", None)
        stays.close(wait=True)
        trace = read_live_trace(tmp_path / "epoch-000001", since="000001-00000001-b").trace
        assert trace.header.start.positions == {"a": 1, "b": 2}
        assert trace.violations() == ()


class Clerk(Process):
    """Receives orders from an external source."""

    def __init__(self):
        self.taken = []

    def receive(self, ctx, channel, message):
        self.taken.append((channel, message, ctx.now()))
        ctx.send("a->a", message) if channel == "orders" else None

    def capture(self):
        return msgspec.msgpack.encode(self.taken)


class TestReplay:
    def test_R4_replay_of_a_full_trace_gives_the_states_of_the_snapshots(self, full):
        protocol, store, epoch = full
        snapshots = [store.load(name) for _, name, _ in store.list()]
        assert len(snapshots) >= 4
        trace = read_live_trace(epoch).trace
        assert compare_along(lambda: system(protocol), trace, snapshots, None) == []

    def test_R4_replay_begins_at_any_complete_snapshot(self, full):
        protocol, store, epoch = full
        snapshots = [store.load(name) for _, name, _ in store.list()]
        for begun in snapshots:
            trace = read_live_trace(epoch, since=str(begun.id)).trace
            assert compare_along(lambda: system(protocol), trace, snapshots, begun) == []

    def test_a_changed_recorded_state_is_found(self, full):
        protocol, store, epoch = full
        snapshot = store.load("latest")
        fragments = dict(snapshot.fragments)
        changed = msgspec.structs.replace(fragments["b"].state, data=b"\x82")
        fragments["b"] = msgspec.structs.replace(fragments["b"], state=changed)
        wrong = msgspec.structs.replace(snapshot, fragments=fragments)
        trace = read_live_trace(epoch).trace
        (problem,) = compare_along(lambda: system(protocol), trace, [wrong], None)
        assert problem.startswith(f"snapshot {snapshot.id}: the state of b after event ")

    def test_replay_of_a_trace_from_a_snapshot_needs_that_snapshot(self, full):
        protocol, store, epoch = full
        trace = read_live_trace(epoch, since=store.resolve("latest")).trace
        with pytest.raises(UsageError, match=r"begins at snapshot .*; give the store that has it"):
            Replay(system(protocol), trace)

    def test_records_of_a_source_are_replayed(self, tmp_path):
        tracer = open_tracer(tmp_path, "a", "a->a", level="full")
        tracer.event(1, "start", 0.5)
        tracer.event(2, "source orders", 1.5, {"number": 1})
        tracer.sent("a->a", 1, 1, [2, 0], b"\x91" + msgspec.msgpack.encode({"number": 1}))
        tracer.received("a->a", 1, 1, 3, 2.5)
        tracer.close(wait=True)
        clerks = System({"a": Clerk()}, [Channel("a", "a")], sources={"orders": FileSource("orders.jsonl", "a")})
        trace = read_live_trace(tmp_path).trace
        Replay(clerks, trace).run(trace.events())
        assert clerks.processes["a"].taken == [("orders", {"number": 1}, 1.5), ("a->a", {"number": 1}, 2.5)]


def write_game(directory, protocol) -> str:
    """Write the traced system to a file, and return its name for the command line."""
    file = directory / "game.py"
    file.write_text(
        f"from tests.simulation.systems import players\ngame = players('complete', {protocol!r}, snapshots=True)\n"
    )
    return f"{file}:game"


class TestCommands:
    def test_verify_takes_the_directory_of_an_epoch(self, written):
        result = run("trace", "verify", written)
        assert result.code == 0, result
        assert "they fit together" in result.out
        assert ", 0 violated" in result.out
        assert max(map(len, result.out.splitlines())) <= 100

    def test_verify_can_start_at_a_snapshot(self, recorded, written):
        snapshot = next(verdict.snapshot_id for verdict in check_cuts(recorded) if not verdict.missing)
        document = run("trace", "verify", written, "--since", snapshot, "--json").document
        assert document["begins_at"] == snapshot
        assert document["holds"] is True

    def test_verify_checks_all_epochs_of_a_run_or_the_named_one(self, epoch):
        later = shutil.copytree(epoch, epoch.parent / "epoch-000002")
        one = run("trace", "verify", epoch, "--json").document
        result = run("trace", "verify", epoch.parent)
        assert result.code == 0, result
        assert [line for line in result.out.splitlines() if line.endswith(":")] == [f"{epoch}:", f"{later}:"]
        assert result.out.count("they fit together") == 2
        assert result.out.endswith("2 epochs: 2 in order, 0 not\n")
        whole = run("trace", "verify", epoch.parent, "--json").document
        assert (whole["trace"], whole["holds"]) == (str(epoch.parent), True)
        assert whole["epochs"] == [one, one | {"trace": str(later)}]
        assert run("trace", "verify", epoch.parent, "--epoch", "1", "--json").document == one
        refused(run("trace", "verify", epoch.parent, "--epoch", "3"), "has no epoch 3; it has: epoch-000001, epoch")
        refused(run("trace", "verify", epoch, "--epoch", "1"), "has no epochs; --epoch is for the directory")
        refused(
            run("trace", "verify", epoch.parent, "--since", "x"), "choose with --epoch N the one that shall begin at x"
        )

    def test_an_inconsistent_epoch_does_not_hide_the_others(self, epoch):
        shutil.copytree(epoch, epoch.parent / "epoch-000002")
        spoil(epoch / "a" / "000001.parquet", lambda rows: rows[-1].update(ordinal=999, kind="send", channel="a->b"))
        (epoch.parent / "epoch-000003").mkdir()
        result = run("trace", "verify", epoch.parent)
        assert result.code == 2
        assert "a/000001.parquet: a, position" in result.out
        assert result.out.count("they fit together") == 1
        assert "epoch-000003 has no segments of a trace" in result.out
        assert result.out.endswith("3 epochs: 1 in order, 2 not\n")
        result = run("trace", "verify", epoch.parent, "--json")
        assert (result.code, result.document["holds"]) == (2, False)
        assert [one["holds"] for one in result.document["epochs"]] == [False, True, False]
        assert "a/000001.parquet: a, position" in result.document["epochs"][0]["error"]

    def test_verify_names_a_changed_ordinal(self, epoch):
        spoil(epoch / "a" / "000001.parquet", lambda rows: rows[-1].update(ordinal=999, kind="send", channel="a->b"))
        refused(run("trace", "verify", epoch), "a/000001.parquet: a, position")

    def test_R4_replay_finds_the_store_that_contains_the_trace(self, full, tmp_path):
        protocol, store, epoch = full
        game = write_game(tmp_path, protocol)
        result = run("trace", "replay", epoch, "--system", game)
        assert result.code == 0, result
        complete = len(store.list())
        assert f"{complete} snapshots: {4 * complete} of {4 * complete} states are as recorded" in result.out
        document = run(
            "trace", "replay", epoch, "--system", game, "--since", store.resolve("latest"), "--json"
        ).document
        assert document["holds"] is True
        assert document["snapshots"] == []

    def test_replay_of_ordinals_is_refused(self, written, tmp_path):
        game = write_game(tmp_path, "chandy-lamport")
        refused(run("trace", "replay", written, "--system", game), "record it with level 'full'")

    def test_since_is_refused_for_a_file(self, tmp_path):
        refused(run("trace", "verify", tmp_path / "run.jsonl", "--since", "x"), "--since is for the directory")


def test_nothing_is_removed_or_written_through_a_symbolic_link(tmp_path):
    precious = tmp_path / "outside" / "epoch-000001" / "b" / "000001.parquet"
    precious.parent.mkdir(parents=True)
    precious.write_bytes(b"precious")
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "trace").symlink_to(tmp_path / "outside")
    tracer = open_tracer(tmp_path / "run" / "trace", "b", bytes_max=1)
    tracer.close()
    assert precious.read_bytes() == b"precious"
    assert [path.name for path in (tmp_path / "outside").rglob("*") if path.is_file()] == ["000001.parquet"]
