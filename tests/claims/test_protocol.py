"""M1, M2, C1-C7, V1, E2, E6, E7, E10, R1: the protocols and their coordinator keep their promises."""

import msgspec
import pytest
from tests.protocol.cluster import Cluster
from tests.protocol.coordinator_host import CoordinatorHost, those
from tests.protocol.network import Network
from tests.protocol.playbook import (
    Playbook,
    deliver,
    frame,
    in_flight,
    marker,
    received,
    request,
    send,
    send_marker,
    sent,
    snapshot_id,
    view,
)
from tests.protocol.test_random_runs import check_all

from strobe.causality.proof import verify
from strobe.errors import ProtocolViolation
from strobe.protocol import UNORDERED, ChandyLamport, LaiYang, Policy, Snapshot, SnapshotId, advise_interval_s
from strobe.protocol.coordinator.messages import (
    Dismiss,
    Halt,
    JoinWanted,
    LeaveWanted,
    ProcessWithoutState,
    ReportOutcome,
    RequestRecording,
    RestoreState,
    SnapshotChosen,
    SnapshotWanted,
)
from strobe.protocol.process.effects import DropRecording, RecordState, ReportSentCounts, SendView
from strobe.protocol.process.events import SentCountRelayed, SnapshotAborted, ViewInstalled
from strobe.protocol.values.log_entries import Abort, Begin, Commit, EpochStart
from strobe.protocol.values.view import ChannelSpec

S1, S2 = snapshot_id(1), snapshot_id(2)
BOTH_WAYS = view("p>q", "q>p", "p>r", "r>p")

TOPOLOGIES = {
    "cycle": ("a>b", "b>c", "c>a"),
    "dag": ("a>b", "a>c", "b>d", "c>d"),
    "components": ("a>b", "b>a", "c>d"),
    "self-loop": ("a>a:loop", "a>b"),
    "parallel": ("a>b:1", "a>b:2", "b>a:3"),
    "two sources": ("a>c", "b>c"),
}


def p() -> Playbook:
    return Playbook(ChandyLamport("p", BOTH_WAYS))


@pytest.mark.parametrize("protocol", ["chandy-lamport", "lai-yang"])
@pytest.mark.parametrize("channels", TOPOLOGIES.values(), ids=TOPOLOGIES.keys())
def test_M1_a_snapshot_of_any_topology_completes_and_is_exact(channels: tuple[str, ...], protocol: str) -> None:
    network = Network(view(*channels), protocol)
    for step in range(40):
        network.send(step, step)
        if step % 10 == 5:
            network.begin(step)
        network.take(step, 0)
        network.apply(step)
    network.calm_down()
    assert len(network.complete()) == len(network.begun) >= 4
    check_all(network)


def test_M1_a_snapshot_is_initiated_at_as_many_processes_as_needed() -> None:
    requests = those(CoordinatorHost(view("a>c", "b>c", "c>d")).handle(SnapshotWanted()), RequestRecording)
    assert {order.process for order in requests} == {"a", "b"}


@pytest.mark.parametrize("wrong", [3, 1], ids=["gap or reordering", "duplicate"])
def test_M2_a_broken_channel_is_named_and_its_snapshot_is_rejected(wrong: int) -> None:
    topology = view("p>q")
    sender, receiver = Playbook(ChandyLamport("p", topology)), Playbook(ChandyLamport("q", topology))
    for message in ("a", "b", "c"):
        sender.handle(sent("pq", message))
    receiver.handle(received("pq", frame(1, "a")))
    with pytest.raises(ProtocolViolation, match=f"message {wrong}") as violation:
        receiver.handle(received("pq", frame(wrong, "?")))
    assert violation.value.channel == "pq"
    # A host that continued anyway would get this:
    fragments = {"p": sender.finishes(request(S1)), "q": receiver.finishes(marker("pq", S1))}
    verdict = verify(Snapshot(S1, "chandy-lamport", ("p",), topology, fragments))
    assert [finding.subject for finding in verdict.findings] == ["pq"]


def test_C1_any_process_may_initiate_also_several_at_once_with_the_same_id() -> None:
    network = Network(view("a>b", "b>c", "c>a"), "chandy-lamport")
    network.send(0, 2)
    for process in network.view.processes:
        network.orders.append((process, request(SnapshotId(1, 1, "a"))))
        network.orders.append((process, request(SnapshotId(1, 1, process))))
    network.begun += [SnapshotId(1, 1, process) for process in network.view.processes]
    network.calm_down()
    assert {snapshot.id for snapshot in network.complete()} == set(network.begun)
    check_all(network)


def test_C2_markers_follow_the_recording_and_precede_later_messages() -> None:
    play = p()
    play >> sent("pq", "before") << [send("pq", frame(1, "before"))]
    play >> request(S1) << [RecordState(S1), send_marker("pq", S1), send_marker("pr", S1)]
    play >> sent("pq", "later") << [send("pq", frame(2, "later"))]


def test_C3_the_first_marker_records_at_once_and_its_channel_is_empty() -> None:
    play = p()
    play.handle(received("qp", frame(1, "before")))
    play >> marker("qp", S1) << [RecordState(S1), send_marker("pq", S1), send_marker("pr", S1)]
    play.handle(received("qp", frame(2, "behind the marker")))
    play.handle(received("rp", frame(1, "in flight")))
    assert in_flight(play.finishes(marker("rp", S1))) == {"qp": [], "rp": ["in flight"]}


def test_C4_a_later_marker_closes_its_channel_with_the_messages_since() -> None:
    play = p()
    play.handle(received("rp", frame(1, "before the recording")))
    play.handle(marker("qp", S1))
    play.handle(received("rp", frame(2, "x", "y")))
    fragment = play.finishes(marker("rp", S1))
    play.handle(received("rp", frame(4, "behind the marker")))
    assert in_flight(fragment)["rp"] == ["x", "y"]


def test_C5_the_last_marker_and_the_last_process_complete_a_snapshot() -> None:
    play = p()
    play.handle(request(S1))
    play.ignores(marker("rp", S1))
    assert play.finishes(marker("qp", S1)).snapshot == S1
    host = CoordinatorHost(BOTH_WAYS)
    host.handle(SnapshotWanted())
    host.fragments(S1, "p", "q")
    assert host.outcomes() == {}
    host.fragments(S1, "r")
    assert isinstance(host.outcomes()[str(S1)], Commit)


def test_C6_overlapping_snapshots_are_separate_and_each_is_right() -> None:
    network = Network(view("a>b", "b>a", "b>c", "c>a"), "chandy-lamport")
    for step in range(30):
        network.send(step, step)
        network.begin(step)
        network.apply(step)
        network.take(step, 0)
    assert max(len(machine.open) for machine in network.machines.values()) > 5
    network.calm_down()
    assert len(network.complete()) == len(network.begun) >= 30
    check_all(network)


def test_C7_recording_never_delays_a_message() -> None:
    play = p()
    for snapshot in (S1, S2):
        play.handle(request(snapshot))
    play >> received("qp", frame(1, "x")) << [deliver("qp", frame(1, "x"))]
    play >> sent("pq", "y") << [send("pq", frame(1, "y"))]
    play.handle(marker("qp", S1))
    play >> received("qp", frame(2, "z")) << [deliver("qp", frame(2, "z"))]


def test_V1_a_higher_index_records_every_missing_one_before_delivery() -> None:
    play = Playbook(LaiYang("p", view("q>p", "p>q", kind=UNORDERED)))
    ahead = frame(2, "ahead", index=2)
    (
        play
        >> received("qp", ahead)
        << [
            RecordState(S1),
            ReportSentCounts(S1, {"pq": 0}),
            RecordState(S2),
            ReportSentCounts(S2, {"pq": 0}),
            deliver("qp", ahead),
        ]
    )
    play >> sent("pq", "x") << [send("pq", frame(1, "x", index=2))]


def test_V1_a_channel_is_complete_when_the_relayed_count_has_arrived() -> None:
    play = Playbook(LaiYang("p", view("q>p", kind=UNORDERED)))
    play.handle(request(S1))  # a quiet process gets a request
    play.ignores(SentCountRelayed(S1, "qp", 2))
    play.handle(received("qp", frame(3, "after the cut", index=1)))
    play.handle(received("qp", frame(2, "b", index=0)))
    assert in_flight(play.finishes(received("qp", frame(1, "a", index=0)))) == {"qp": ["b", "a"]}


def test_E2_a_view_change_aborts_open_snapshots_and_retries_them() -> None:
    host = CoordinatorHost(BOTH_WAYS, Policy(backoff_us=1))
    host.handle(SnapshotWanted(), JoinWanted("s", (ChannelSpec("ps", "p", "s"), ChannelSpec("sp", "s", "p"))))
    assert [entry.reason for entry in host.aborts()] == ["the view changed from 1 to 2"]
    host.at(1)
    host.drained(2, "p", "q", "r")
    assert len(host.begun()) == 1
    host.drained(2, "s")
    assert [(entry.view, entry.retries) for entry in host.begun()] == [(1, None), (2, str(S1))]


def test_E2_a_view_frame_precedes_its_messages_and_recordings_do_not_mix() -> None:
    play = p()
    play.handle(request(S1))
    after = view("p>q", "q>p", number=2)
    effects = play.handle(ViewInstalled(after))
    assert effects[0] == DropRecording(S1, "view changed")
    assert SendView("pq", after, 0) in effects
    play >> sent("pq", "x") << [send("pq", frame(1, "x", view=2))]
    play.ignores(marker("qp", S2, view=1))


def test_E2_a_leaver_is_out_once_its_last_messages_were_received() -> None:
    host = CoordinatorHost(BOTH_WAYS)
    host.handle(LeaveWanted("r"))
    assert those(host.drained(2, "r", "p"), Dismiss) == []
    assert those(host.drained(2, "q"), Dismiss) == [Dismiss("r")]
    assert [after.processes for after in host.views()] == [("p", "q")]


def test_E6_a_snapshot_stalled_by_a_crash_times_out_and_is_retried() -> None:
    host = CoordinatorHost(BOTH_WAYS, Policy(timeout_us=1_000_000, backoff_us=1))
    host.handle(SnapshotWanted())
    host.fragments(S1, "p", "r")
    effects = host.at(1_000_000)
    assert [entry.reason for entry in host.aborts()] == ["timed out after 1 s without a fragment from q"]
    assert {order.process for order in those(effects, ReportOutcome)} == {"p", "q", "r"}
    host.at(1_000_001)
    assert host.begun()[1].retries == str(S1)


def test_E6_late_markers_and_fragments_of_an_aborted_snapshot_are_ignored() -> None:
    play = p()
    play.handle(marker("qp", S1))
    play >> SnapshotAborted(S1) << [DropRecording(S1, "aborted")]
    play.ignores(marker("rp", S1))
    play.ignores(request(S1))
    host = CoordinatorHost(BOTH_WAYS, Policy(timeout_us=1, attempts_max=1))
    host.handle(SnapshotWanted())
    host.at(1)
    host.fragments(S1, "p", "q", "r")
    assert [type(entry) for entry in host.log] == [Begin, Abort]


@pytest.mark.parametrize("protocol", ["chandy-lamport", "lai-yang"])
def test_E7_a_restarted_coordinator_finishes_or_aborts_open_snapshots(protocol: str) -> None:
    cluster = Cluster(view("p>q", "q>p", "q>r", "r>p"), protocol, seed=7)
    for _ in range(200):
        cluster.step()
    assert len(cluster.moments) > 10
    for moment in cluster.moments:
        moment.lose_coordinator()
        moment.calm_down()
        begun = {entry.snapshot for entry in moment.log if isinstance(entry, Begin)}
        assert begun == {entry.snapshot for entry in moment.log if isinstance(entry, Commit | Abort)}


def test_E7_processes_free_their_buffers_without_a_coordinator() -> None:
    play = p()
    play.handle(request(S1))
    play.handle(received("qp", frame(1, "kept for S1")))
    # The host has waited long enough, and reports it; the application has continued in between.
    play >> SnapshotAborted(S1) << [DropRecording(S1, "aborted")]
    assert not play.machine.open


def test_E10_storms_are_prevented() -> None:
    host = CoordinatorHost(BOTH_WAYS, Policy(interval_us=10, pause_us_min=1000, overlapping_max=2, timeout_us=10**9))
    for now in range(0, 10_000, 10):
        host.at(now)
    assert len(host.begun()) == 2
    first, second = host.begun()
    assert second.at_us - first.at_us >= 1000


def test_E10_the_interval_is_advised_from_the_cost_and_the_failure_rate() -> None:
    assert advise_interval_s(2.0, 3600.0) == 120.0


def test_R1_a_new_epoch_fences_off_older_ones_and_aborts_open_snapshots() -> None:
    host = CoordinatorHost(BOTH_WAYS, Policy(attempts_max=1))
    host.handle(SnapshotWanted(), ProcessWithoutState("q"), SnapshotChosen(None, None))
    goal = msgspec.structs.replace(BOTH_WAYS, number=2)
    assert those(host.orders, RestoreState) == [RestoreState(process, 2, goal, None) for process in "pqr"]
    host.fragments(S1, "p", "q", "r")
    assert [type(entry) for entry in host.log] == [Begin, EpochStart]
    restored = Playbook(ChandyLamport("p", goal, 2))
    restored.ignores(marker("qp", S1, view=2))


def test_R1_a_process_that_causes_rollback_after_rollback_is_stopped() -> None:
    host = CoordinatorHost(BOTH_WAYS, Policy(rollbacks_max=2))
    for _ in range(3):
        host.handle(ProcessWithoutState("q"), SnapshotChosen(None, None))
    assert len([entry for entry in host.log if isinstance(entry, EpochStart)]) == 2
    (halt,) = those(host.orders, Halt)
    assert "process q has crashed again" in halt.report
