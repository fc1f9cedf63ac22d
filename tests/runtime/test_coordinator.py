"""The live coordinator with nodes that are made by hand: who is let in, what is committed, what is aborted."""

import asyncio
from pathlib import Path

import msgspec
import pytest
from tests.runtime.fake_coordinator import application_of
from tests.runtime.fake_nodes import Quiet, Running, both_alive, committed, record_of, running, system_of
from tests.runtime.link_ends import run

from strobe import Channel, System
from strobe.causality.proof import verify
from strobe.errors import UsageError
from strobe.protocol import ChannelSpec
from strobe.protocol.coordination import (
    AskToRecord,
    Drained,
    LeaveWanted,
    LetGo,
    RecordingFailed,
    SnapshotStarted,
    SnapshotWanted,
    TellRestore,
    TellSettled,
    TellView,
)
from strobe.protocol.ids import SnapshotId
from strobe.protocol.log import Abort, Begin, EpochStart, FrontierRecord
from strobe.runtime import control_server
from strobe.runtime.addresses import parse_address
from strobe.runtime.control import (
    LENGTH,
    AddressBook,
    ChannelReport,
    Failed,
    FragmentStored,
    Heartbeat,
    HeartbeatHeard,
    Recorded,
    Refused,
    SnapshotBegun,
    Stop,
    Welcome,
)
from strobe.runtime.host import Host
from strobe.runtime.reception import REJECTS_LOGGED_MAX
from strobe.storage import Store


def entries(store: Path) -> list[object]:
    return [entry for _, entry in Store.open(store).read_log()]


def test_S1_an_empty_log_begins_with_the_first_epoch_and_the_first_view(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(tmp_path / "store") as coordinator:
            first = entries(tmp_path / "store")[0]
            assert isinstance(first, EpochStart)
            assert (first.epoch, first.view) == (1, coordinator.coordinator.first_view)

    asyncio.run(scenario())


def test_a_node_hears_who_it_belongs_to_then_where_others_are_then_that_it_shall_start(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(tmp_path / "store") as coordinator:
            a = await coordinator.node("a", address=("127.0.0.1", 4711))
            told = await a.start_as_told()
            assert [type(message) for message in a.heard] == [Welcome, AddressBook, TellRestore]
            assert a.heard[0].system == Store.open(tmp_path / "store").header.store
            assert a.heard[1].addresses == {"a": ("127.0.0.1", 4711)}
            assert (told.epoch, told.restored) == (1, None)
            await coordinator.node("b")
            assert set((await a.hear(AddressBook)).addresses) == {"a", "b"}

    asyncio.run(scenario())


def test_a_snapshot_is_begun_recorded_proved_and_committed(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(tmp_path / "store") as coordinator:
            a, b = await both_alive(coordinator)
            coordinator.coordinator.hear(SnapshotWanted())
            begun = await a.hear(SnapshotBegun)
            asked = await a.hear(AskToRecord)
            assert asked.snapshot == begun.snapshot
            a.say(Recorded(begun.snapshot, "a", 5))
            a.store_part(begun, b"a's state")
            await coordinator.until(lambda: coordinator.service.status().open[0].waiting_for == ["b"])
            b.store_part(await b.hear(SnapshotBegun), b"b's state")
            for node in (a, b):
                assert (await node.outcome(begun.snapshot)).committed
            finished = coordinator.service.status().finished[-1]
            assert (finished.outcome, finished.state_bytes) == ("committed", 18)
            assert coordinator.logged("committed")[0]["bytes"] == 18
        store = Store.open(tmp_path / "store")
        snapshot = store.load("latest")
        assert verify(snapshot).holds
        assert snapshot.fragments["a"].state.data == b"a's state"
        assert store.verify_bytes() == []

    asyncio.run(scenario())


def test_S2_the_next_snapshot_names_the_last_one_as_its_parent(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(tmp_path / "store") as coordinator:
            nodes = await both_alive(coordinator)
            first = await committed(coordinator, *nodes)
            coordinator.coordinator.hear(SnapshotWanted())
            assert (await nodes[0].hear(SnapshotBegun)).parent == first

    asyncio.run(scenario())


def test_P1_what_does_not_prove_is_aborted_with_the_reason(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(tmp_path / "store", attempts_max=1) as coordinator:
            a, b = await both_alive(coordinator)
            coordinator.coordinator.hear(SnapshotWanted())
            wrong = {"b->a": FrontierRecord(1, "00" * 16)}
            (_, told), _ = await asyncio.gather(a.take_part(received=wrong), b.take_part())
            assert not told.committed
            assert "b->a" in told.reason
            assert "the cut is inconsistent" in told.reason
        assert isinstance(entries(tmp_path / "store")[-1], Abort)

    asyncio.run(scenario())


def test_snapshots_that_are_aborted_again_and_again_are_a_trouble_until_one_is_committed(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(tmp_path / "store", attempts_max=1) as coordinator:
            a, b = await both_alive(coordinator)
            wrong = {"b->a": FrontierRecord(1, "00" * 16)}
            for _ in range(3):
                assert coordinator.service.status().troubles == []
                coordinator.coordinator.hear(SnapshotWanted())
                await asyncio.gather(a.take_part(received=wrong), b.take_part())
            [trouble] = coordinator.service.status().troubles
            assert trouble.kind == "snapshots"
            assert "the last 3 snapshots were aborted" in trouble.problem
            assert "the cut is inconsistent" in trouble.problem
            await committed(coordinator, a, b)
            assert coordinator.service.status().troubles == []

    asyncio.run(scenario())


def test_a_channel_that_is_refused_for_good_is_a_trouble(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(tmp_path / "store") as coordinator:
            a, _ = await both_alive(coordinator)
            a.say(Heartbeat("a", 1, 0, 0.0, 0, {"a->b": ChannelReport(0, refused="stranger")}, {}, {}))
            await coordinator.until(lambda: coordinator.service.status().troubles)
            [trouble] = coordinator.service.status().troubles
            assert trouble.kind == "refused"
            assert "channel a->b is refused where process a looks for its other end: stranger" in trouble.problem

    asyncio.run(scenario())


def test_a_process_that_waits_for_something_before_it_can_begin_is_a_trouble_and_not_lost(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(tmp_path / "store") as coordinator:
            _, b = await both_alive(coordinator)
            b.say(Heartbeat("b", 0, 0, 0.0, 0, {}, {}, {}, waiting="store s3://bucket/shop: is unreachable"))
            await coordinator.until(lambda: coordinator.service.status().troubles)
            [trouble] = coordinator.service.status().troubles
            assert trouble.kind == "waiting"
            assert trouble.problem == "process b cannot begin yet: store s3://bucket/shop: is unreachable"
            b.beat()
            await coordinator.until(lambda: not coordinator.service.status().troubles)

    asyncio.run(scenario())


def test_a_channel_that_cannot_be_read_is_a_trouble(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(tmp_path / "store") as coordinator:
            _, b = await both_alive(coordinator)
            b.say(Heartbeat("b", 1, 0, 0.0, 0, {}, {}, {}, unreadable={"a->b": "a->b: the frame of message 2"}))
            await coordinator.until(lambda: coordinator.service.status().troubles)
            [trouble] = coordinator.service.status().troubles
            assert trouble.kind == "unreadable"
            assert "process b cannot read what comes on a->b: the frame of message 2" in trouble.problem

    asyncio.run(scenario())


def test_a_process_that_is_held_back_by_its_output_is_a_trouble(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(tmp_path / "store") as coordinator:
            _, b = await both_alive(coordinator)
            b.say(Heartbeat("b", 1, 0, 0.0, 0, {}, {}, {}, held_back="sink out.jsonl: no space left on device"))
            await coordinator.until(lambda: coordinator.service.status().troubles)
            [trouble] = coordinator.service.status().troubles
            assert trouble.kind == "output"
            expected = "process b is given nothing more to receive: sink out.jsonl: no space left on device"
            assert trouble.problem == expected
            b.beat()
            await coordinator.until(lambda: not coordinator.service.status().troubles)

    asyncio.run(scenario())


def test_a_part_whose_blob_is_not_there_is_never_committed(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(tmp_path / "store", attempts_max=1) as coordinator:
            a, b = await both_alive(coordinator)
            coordinator.coordinator.hear(SnapshotWanted())
            begun = await a.hear(SnapshotBegun)
            view = coordinator.coordinator.brain.view
            record = record_of(Store.open(tmp_path / "store"), view, "a", begun.position, b"soon gone")
            (tmp_path / "store" / "blobs" / f"{begun.position:020d}" / record.state.blake3).unlink()
            a.say(FragmentStored(begun.snapshot, "a", view.number, record))
            _, told = await b.take_part()
            assert not told.committed
            assert "is missing" in told.reason

    asyncio.run(scenario())


def test_E6_the_crash_of_a_process_aborts_what_it_has_not_stored_and_that_is_retried(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(tmp_path / "store") as coordinator:
            a, b = await both_alive(coordinator)
            coordinator.coordinator.hear(SnapshotWanted())
            begun = await a.hear(SnapshotBegun)
            b.say(Failed("b", "its disk burnt"))
            await b.close()
            told = await a.outcome(begun.snapshot)
            assert (told.committed, told.reason) == (False, "process b failed")
            assert coordinator.logged("failed")[0]["reason"] == "its disk burnt"
            # It only lost its connection: it comes back with its state, and the retry completes.
            again = await coordinator.node("b", epoch=1)
            again.say(Drained("b", (await again.hear(TellView)).view.number))
            (retried, told), _ = await asyncio.gather(a.take_part(), again.take_part())
            assert told.committed
            assert retried.snapshot.counter == begun.snapshot.counter + 1
            begins = [entry for entry in entries(tmp_path / "store") if isinstance(entry, Begin)]
            assert begins[-1].retries == str(begun.snapshot)

    asyncio.run(scenario())


def test_E10_no_snapshot_begins_while_a_process_is_missing(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(tmp_path / "store") as coordinator:
            a, b = await both_alive(coordinator)
            await b.close()
            await coordinator.until(lambda: coordinator.logged("failed"))
            coordinator.coordinator.hear(SnapshotWanted())
            assert coordinator.coordinator.brain.beginning is None
            b = await coordinator.node("b", epoch=1)
            b.say(Drained("b", (await b.hear(TellView)).view.number))
            (_, told), _ = await asyncio.gather(a.take_part(), b.take_part())
            assert told.committed

    asyncio.run(scenario())


def test_each_sign_of_life_is_answered(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(tmp_path / "store", silence_s=7.0) as coordinator:
            a = await coordinator.living("a")
            assert a.heard[0].silence_s == 7.0
            for _ in range(3):
                a.beat()
                await a.hear(HeartbeatHeard)

    asyncio.run(scenario())


def test_a_node_that_says_nothing_for_too_long_has_failed_and_may_return(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(tmp_path / "store") as coordinator:
            a = await coordinator.living("a")
            members = coordinator.coordinator.members
            usual_s, members.silence_s = members.silence_s, 0.05  # it has been heard of: now its silence counts
            async with asyncio.timeout(20):
                await a.ended.wait()
            assert "said nothing" in coordinator.logged("failed")[0]["reason"]
            assert coordinator.service.status().processes[0].state == "missing"
            members.silence_s = usual_s
            returned = await coordinator.node("a", epoch=1)
            await returned.hear(TellView)

    asyncio.run(scenario())


def test_E3_a_bound_that_a_process_reached_aborts_the_snapshot_with_that_reason(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(tmp_path / "store", attempts_max=1) as coordinator:
            a, b = await both_alive(coordinator)
            coordinator.coordinator.hear(SnapshotWanted())
            begun = await b.hear(SnapshotBegun)
            b.say(RecordingFailed(begun.snapshot, "b", "more than 4 MiB in flight"))
            told = await a.outcome(begun.snapshot)
            assert (told.committed, told.reason) == (False, "b: more than 4 MiB in flight")

    asyncio.run(scenario())


def test_C1_a_snapshot_that_a_process_initiates_is_adopted(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(tmp_path / "store") as coordinator:
            a, b = await both_alive(coordinator)
            own = SnapshotId(1, 1, "b")
            b.say(SnapshotStarted(own, "b", 1))
            (begun, told), _ = await asyncio.gather(a.take_part(), b.take_part())
            assert (begun.snapshot, told.committed) == (own, True)

    asyncio.run(scenario())


def test_C1_a_snapshot_that_a_process_initiated_while_it_was_cut_off_is_adopted_on_its_return(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(tmp_path / "store") as coordinator:
            a, b = await both_alive(coordinator)
            await b.close()
            await coordinator.until(lambda: coordinator.logged("failed"))
            b = await coordinator.node("b", epoch=1)
            own = SnapshotId(1, 1, "b")
            b.say(Drained("b", (await b.hear(TellView)).view.number))
            b.say(SnapshotStarted(own, "b", 1))
            (begun, told), _ = await asyncio.gather(a.take_part(), b.take_part())
            assert (begun.snapshot, told.committed) == (own, True)
            b.say(SnapshotStarted(own, "b", 1))  # once too often: it has its outcome
            assert await committed(coordinator, a, b) != str(own)

    asyncio.run(scenario())


def test_E7_a_restarted_coordinator_finishes_what_was_open(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(tmp_path / "store") as coordinator:
            a, b = await both_alive(coordinator)
            coordinator.coordinator.hear(SnapshotWanted())
            begun = await a.hear(SnapshotBegun)
        async with running(tmp_path / "store") as coordinator:
            a, b = await coordinator.node("a", epoch=1), await coordinator.node("b", epoch=1)
            for node in (a, b):
                assert await node.hear(SnapshotBegun) == begun
                assert (await node.hear(AskToRecord)).snapshot == begun.snapshot
                node.store_part(begun)
            assert (await a.outcome(begun.snapshot)).committed
        assert len(Store.open(tmp_path / "store").list()) == 1

    asyncio.run(scenario())


def test_strangers_are_refused_for_good_and_the_coordinator_goes_on(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(tmp_path / "store") as coordinator:
            old = await coordinator.node("a", version=99)
            assert "version 99" in (await old.refused()).reason
            other = await coordinator.node("a", protocol="lai-yang")
            assert "lai-yang" in (await other.refused()).reason
            unknown = await coordinator.node("z", channels=())
            refusal = await unknown.refused()
            assert refusal.final
            assert "'z'" in refusal.reason
            ahead = await coordinator.node("a", epoch=9)
            assert not (await ahead.refused()).final
            await both_alive(coordinator)

    asyncio.run(scenario())


def test_E7_a_node_of_another_system_is_turned_away_for_now_whatever_else_is_strange_about_it(tmp_path: Path) -> None:
    """E7: its own coordinator had this port and will have one again; it has its state, and must not end."""

    async def scenario() -> None:
        async with running(tmp_path / "store") as coordinator:
            a, _ = await both_alive(coordinator)
            strange = ({"epoch": 1}, {"epoch": 9}, {"version": 99}, {"protocol": "lai-yang"}, {"instance": "newer"})
            for how in strange:
                other = await coordinator.node("a", system="another", **how)
                refusal = await other.refused()
                assert not refusal.final
                assert f"of another system, of the store {tmp_path / 'store'}" in refusal.reason
            assert not a.ended.is_set()
            own = await coordinator.node("b", epoch=1, system=coordinator.coordinator.identity)
            assert "running already" in (await own.refused()).reason

    asyncio.run(scenario())


def test_E7_nodes_go_on_while_another_system_has_the_port_of_their_coordinator(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """E7: they keep their state, and come back to their own coordinator when it is there again."""

    async def scenario() -> None:
        system = System({"a": Quiet()}, [])
        async with running(tmp_path / "mine", system) as mine:
            place = mine.service.listen
            node = Host("a", system, application_of(system, "a"), parse_address(place, "listen"))
            ending = asyncio.create_task(node.run())
            await mine.until(lambda: mine.coordinator.brain.settled)
        life = node.timeline
        async with running(tmp_path / "others", system, listen=place) as other:
            await other.until(lambda: len(other.logged("turned away")) > 1)
            assert other.service.status().processes[0].state == "missing"
        async with running(tmp_path / "mine", system, listen=place) as mine:
            await mine.until(lambda: mine.coordinator.brain.settled)
            assert (mine.coordinator.brain.epoch, node.timeline) == (1, life)
            node.end(0)
            assert await ending == 0

    run(scenario())
    assert len([line for line in caplog.messages if "of another system" in line]) == 1


def test_who_is_turned_away_for_now_again_and_again_does_not_fill_the_log(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(tmp_path / "store") as coordinator:
            for _ in range(REJECTS_LOGGED_MAX + 5):
                await (await coordinator.node("a", system="another")).refused()
            assert len(coordinator.logged("turned away")) == REJECTS_LOGGED_MAX

    asyncio.run(scenario())


def test_a_crowd_of_strangers_does_not_keep_the_door(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(control_server, "STRANGERS_MAX", 3)

    async def scenario() -> None:
        async with running(tmp_path / "store") as coordinator:
            host, port = parse_address(coordinator.service.listen, "listen")
            crowd = [await asyncio.open_connection(host, port) for _ in range(5)]
            await coordinator.until(lambda: coordinator.service.reception.rejects == 2)
            await both_alive(coordinator)
            await coordinator.until(lambda: coordinator.service.reception.rejects == 3)
            assert coordinator.logged("rejected")[-1]["reason"] == "3 others came after it before it said who it is"
            for reader, writer in crowd[:3]:
                assert await reader.read() == b""
                writer.close()
            for _, writer in crowd[3:]:
                writer.close()

    asyncio.run(scenario())


def test_the_same_instance_on_a_new_connection_replaces_the_old_connection(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(tmp_path / "store") as coordinator:
            first = await coordinator.living("a")
            again = await coordinator.node("a", instance=f"a-{id(first)}", epoch=1)
            await again.hear(TellView)
            async with asyncio.timeout(20):
                await first.ended.wait()
            assert not any(isinstance(message, Refused) for message in first.heard)
            assert coordinator.logged("failed") == []

    asyncio.run(scenario())


@pytest.mark.parametrize(
    "garbage",
    [
        b"GET / HTTP/1.1\r\nHost: here\r\n\r\n",
        LENGTH.pack(2**31) + b"x",
        LENGTH.pack(4) + b"\xc1\xc1\xc1\xc1",
        LENGTH.pack(len(b := msgspec.msgpack.encode(("Stop", {"reason": "no"})))) + b,
        LENGTH.pack(len(b := msgspec.msgpack.encode(("Drained", {"process": "a", "view": 1})))) + b,
        b"\x1b\xeee",
    ],
)
def test_garbage_on_the_control_port_is_refused_and_counted(tmp_path: Path, garbage: bytes) -> None:
    async def scenario() -> None:
        async with running(tmp_path / "store") as coordinator:
            stranger = await coordinator.node("a", silent=True)
            stranger.writer.write(garbage)
            stranger.writer.write_eof()
            async with asyncio.timeout(20):
                await stranger.ended.wait()
            assert coordinator.service.status().rejected == 1
            assert len(coordinator.logged("rejected")) == 1
            await coordinator.living("a")

    asyncio.run(scenario())


def test_a_node_that_speaks_for_another_is_cut_off(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(tmp_path / "store") as coordinator:
            a = await coordinator.living("a")
            a.say(Drained("b", 1))
            async with asyncio.timeout(20):
                await a.ended.wait()
            assert "not for a to say" in coordinator.logged("rejected")[0]["reason"]

    asyncio.run(scenario())


def test_E2_a_process_joins_and_leaves_while_all_run(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(tmp_path / "store") as coordinator:
            a, b = await both_alive(coordinator)
            channels = (ChannelSpec("a->c", "a", "c"), ChannelSpec("c->z", "c", "z"))
            c = await coordinator.node("c", channels=channels)
            await c.hear(TellSettled)
            view = (await c.hear(TellView)).view
            # z has not joined: it brings that channel itself.
            assert [channel.id for channel in view.channels if "c" in channel.id] == ["a->c"]
            for node in (a, b, c):
                node.say(Drained(node.process, view.number))
            await coordinator.until(lambda: coordinator.coordinator.brain.settled)
            await committed(coordinator, a, b, c)
            coordinator.coordinator.hear(LeaveWanted("c"))
            without = (await a.hear(TellView)).view
            while "c" in without.processes:
                without = (await a.hear(TellView)).view
            for node in (a, b, c):
                node.say(Drained(node.process, without.number))
            await c.hear(LetGo)
            await c.close()
            await coordinator.until(lambda: "c" not in coordinator.coordinator.members.by_process)
            assert coordinator.logged("failed") == []
            # Whoever still keeps something for it hears that it has left.
            while "c" in (await a.hear(AddressBook)).members:
                pass
            # One that has left and missed the word is told again.
            late = await coordinator.node("c", epoch=1)
            await late.hear(LetGo)

    asyncio.run(scenario())


def test_a_stop_is_told_to_every_node_and_then_the_coordinator_ends(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(tmp_path / "store") as coordinator:
            a, b = await both_alive(coordinator)
            coordinator.service.stop("enough")
            for node in (a, b):
                assert await node.hear(Stop) == Stop("enough", 0)
                await node.close()
            assert await coordinator.coordinator.ended == 0
            assert coordinator.logged("failed") == []
        assert not (tmp_path / "store" / "run" / "coordinator.json").exists()

    asyncio.run(scenario())


def test_a_second_coordinator_for_the_store_is_refused_while_the_first_answers(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(tmp_path / "store", http=True):
            with pytest.raises(UsageError, match="stop it first"):
                async with running(tmp_path / "store"):
                    pass

    asyncio.run(scenario())


def test_the_store_of_another_system_is_refused(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(tmp_path / "store"):
            pass
        with pytest.raises(UsageError, match="belongs to another system, of the processes a, b"):
            async with running(tmp_path / "store", system_of("x", "y")):
                pass
        simulated = Store.create(tmp_path / "simulated")
        simulated.append(Begin("000001-00000001-a", 1, "chandy-lamport", ("a",), 0), 0)
        with pytest.raises(UsageError, match="not written by a live system"):
            async with running(tmp_path / "simulated"):
                pass

    asyncio.run(scenario())


def test_E9_a_system_with_a_channel_that_its_store_does_not_have_is_refused(tmp_path: Path) -> None:
    """E9: nobody would notice that nothing travels there."""
    more = system_of("a", "b")
    more.channels = (*more.channels, Channel("a", "b", id="second"))

    async def scenario() -> None:
        async with running(tmp_path / "store"):
            pass
        with pytest.raises(UsageError, match="the system has the channel 'second', which the store"):
            async with running(tmp_path / "store", more):
                pass

    asyncio.run(scenario())


def test_E9_a_store_with_a_channel_that_the_system_has_no_more_is_refused(tmp_path: Path) -> None:
    """E9: nobody would notice that messages still travel where the system has no channel."""
    fewer = system_of("a", "b")
    dropped = fewer.channels[-1]
    fewer.channels = fewer.channels[:-1]

    async def scenario() -> None:
        async with running(tmp_path / "store"):
            pass
        with pytest.raises(UsageError, match=f"has the channel {dropped.id!r}, which the system does not have"):
            async with running(tmp_path / "store", fewer):
                pass

    asyncio.run(scenario())


def test_E1_a_restarted_coordinator_says_of_earlier_snapshots_what_was_said_of_them(tmp_path: Path) -> None:
    """E1, E7: their sizes and durations are in the log."""

    async def scenario() -> None:
        async with running(tmp_path / "store") as coordinator:
            a, b = await both_alive(coordinator)
            for fails in (False, True):
                coordinator.coordinator.hear(SnapshotWanted())
                begun = await a.hear(SnapshotBegun)
                if fails:
                    await b.close()
                else:
                    for node in (a, b):
                        node.store_part(begun)
                await a.outcome(begun.snapshot)
            said = list(coordinator.coordinator.progress.finished)
        async with running(tmp_path / "store") as coordinator:
            again = list(coordinator.coordinator.progress.finished)
        assert [one.outcome for one in said] == ["committed", "aborted"]
        assert again[0] == said[0]
        assert again[0].state_bytes > 0
        assert again[1].duration_us == said[1].duration_us

    asyncio.run(scenario())


def test_P1_a_store_whose_channels_have_another_hash_is_refused_with_the_way_out(tmp_path: Path) -> None:
    strong = system_of("a", "b")
    strong.hash = "blake3"

    async def scenario() -> None:
        async with running(tmp_path / "store"):
            pass
        refusal = "is hashed by xxh3 in the store .*, and cannot change to blake3; give it hash='xxh3', or give another"
        with pytest.raises(UsageError, match=refusal):
            async with running(tmp_path / "store", strong):
                pass
        async with running(tmp_path / "new", strong):
            pass
        async with running(tmp_path / "new", strong):
            pass

    asyncio.run(scenario())


async def heard(coordinator: Running, *processes: str) -> None:
    """Wait until the coordinator has heard one more sign of life of each, and some time has passed since."""
    members = [coordinator.coordinator.members.get(process) for process in processes]
    seen = [member and member.heartbeat for member in members]
    await coordinator.until(
        lambda: all(member and member.heartbeat is not before for member, before in zip(members, seen, strict=True))
    )


def test_a_cycle_that_waits_for_credit_is_reported_once_with_a_way_out(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(tmp_path / "store") as coordinator:
            a, b = await both_alive(coordinator)
            for _ in range(2):  # that nothing goes on is known by two signs of life
                a.beat(b=5.0)
                b.beat(a=6.0)
                assert coordinator.logged("credit deadlock") == []
                await heard(coordinator, "a", "b")
            await coordinator.until(lambda: coordinator.logged("credit deadlock"))
            troubles = coordinator.service.status().troubles
            assert [trouble.kind for trouble in troubles] == ["credit"]
            assert "a -> b -> a" in troubles[0].problem
            assert "window_bytes" in troubles[0].problem
            a.beat()
            await coordinator.until(lambda: coordinator.service.watch.cycles == [])
            assert [trouble.kind for trouble in coordinator.service.status().troubles] == ["slow"]
            assert len(coordinator.logged("credit deadlock")) == 1

    asyncio.run(scenario())


def test_a_cycle_that_waits_for_credit_and_has_events_of_its_own_is_no_deadlock(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(tmp_path / "store") as coordinator:
            a, b = await both_alive(coordinator)
            a.beat(position=1, b=5.0)
            a.beat(position=9, b=5.5)
            await coordinator.until(lambda: coordinator.coordinator.members.get("a").reached == 9)
            for _ in range(2):
                b.beat(a=6.0)
                await heard(coordinator, "b")
            await coordinator.until(lambda: len(coordinator.logged("slow channel")) == 2)
            assert [trouble.kind for trouble in coordinator.service.status().troubles] == ["slow", "slow"]
            assert coordinator.logged("credit deadlock") == []

    asyncio.run(scenario())
