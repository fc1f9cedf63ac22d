"""The status document: the whole system as the coordinator knows it, from `Lifecycle`, the log and heartbeats."""

import os
from collections.abc import Iterator

from strobe.process import System
from strobe.protocol import Lifecycle
from strobe.protocol.coordinator.membership import Membership
from strobe.runtime.addresses import print_address
from strobe.runtime.coordinator.coordinator import Coordinator
from strobe.runtime.coordinator.credit_deadlock import describe_cycle
from strobe.runtime.coordinator.health_monitor import HealthMonitor
from strobe.runtime.coordinator.node_registry import Member, Members
from strobe.runtime.messages.api_documents import ChannelStatus, ProcessStatus, Status, Trouble
from strobe.runtime.messages.control import ChannelReport
from strobe.runtime.messages.verdicts import ConditionStatus

RUNNING = "running"
WAITING = "waiting"
MISSING = "missing"
RESTARTING = "restarting"
JOINING = "joining"
LEAVING = "leaving"

FAILING_MIN = 3
"""This many aborted snapshots in a row are reported as a problem."""

_NO_REPORT = ChannelReport(sent=0, connected=False)


def describe(
    coordinator: Coordinator, watch: HealthMonitor, listen: str, api: str, conditions: list[ConditionStatus]
) -> Status:
    """Return the status; `listen` and `api` are the coordinator's addresses."""
    lifecycle, tracker = coordinator.lifecycle, coordinator.tracker
    shown = processes(lifecycle, coordinator.members, coordinator.now_s())
    return Status(
        system=coordinator.identity,
        store=coordinator.store_url,
        protocol=coordinator.system.protocol,
        listen=listen,
        api=api,
        pid=os.getpid(),
        started_us=coordinator.started_us,
        now_us=coordinator.clock.now_us(),
        epoch=lifecycle.epoch,
        view=lifecycle.view.number,
        settled=lifecycle.settled and not lifecycle.recovering,
        rolling_back=lifecycle.rollback.pending and coordinator.halted is None,
        log_position=coordinator.state.next_position,
        last_entry=coordinator.store.last_entry,
        interval_s=coordinator.settings.interval_s,
        committed=len(coordinator.state.committed),
        aborted=len(coordinator.state.aborted),
        rejected=watch.sessions.rejects,
        processes=shown,
        channels=channels(lifecycle, coordinator.members),
        open=tracker.open(),
        finished=list(tracker.finished),
        rollbacks=list(coordinator.observer.rollbacks),
        troubles=dated_troubles(coordinator, watch, shown),
        halted=coordinator.halted,
        left=list(lifecycle.membership.left),
        term=coordinator.term,
        conditions=conditions,
    )


def processes(lifecycle: Lifecycle, members: Members, now_s: float) -> list[ProcessStatus]:
    """Return all processes of the view, and those that join or leave; empty while the log is being read."""
    if lifecycle.recovering:
        return []
    names = dict.fromkeys((*lifecycle.membership.everyone, *(member.process for member in members)))
    return [_process(lifecycle, members, name, now_s) for name in names]


def _process(lifecycle: Lifecycle, members: Members, name: str, now_s: float) -> ProcessStatus:
    member = members.get(name)
    state, blocked = _state(lifecycle, name, member), members.blocked_by(name, now_s)
    if member is None:
        refused = members.refusals.get(name)
        trouble = f"its node was refused: {refused}" if refused else "it has not registered yet"
        return ProcessStatus(name, state, trouble, "", 0, "", "", 0, 0, 0, 0, 0, 0, 0, 0, {}, None, blocked)
    beat = member.heartbeat
    return ProcessStatus(
        name=name,
        state=state,
        trouble=member.trouble,
        instance=member.instance,
        pid=member.pid,
        host=member.host,
        address=print_address(*member.address),
        epoch=member.epoch,
        position=beat.position if beat else 0,
        events_per_s=round(member.events_per_s or 0, 1) if member.connected else 0,
        cpu_s=beat.cpu_s if beat else 0,
        memory_bytes=beat.memory_bytes if beat else 0,
        backlog_bytes=sum(report.backlog_bytes for report in beat.outgoing.values()) if beat else 0,
        recording_bytes=beat.recording_bytes if beat else 0,
        spilled_bytes=beat.spilled_bytes if beat else 0,
        rejected=beat.rejected if beat else {},
        heard_s_ago=round(max(0.0, now_s - member.last_message_s), 3),
        blocked=blocked,
    )


def _state(lifecycle: Lifecycle, name: str, member: Member | None) -> str:
    membership = lifecycle.membership
    if lifecycle.restarts.is_restarting(name):
        return RESTARTING
    absent = member is None or not member.connected
    if absent and name in membership.unstaged:
        return MISSING  # everything waits for its output
    if name in membership.leaving or (member is not None and member.is_dismissed):
        return LEAVING
    if not absent and membership.unreleased(name):
        return LEAVING
    if absent:
        return MISSING
    if name not in membership.view.processes:
        return JOINING
    return RUNNING if name in membership.drained else WAITING


def channels(lifecycle: Lifecycle, members: Members) -> list[ChannelStatus]:
    found = []
    for channel in lifecycle.view.channels if not lifecycle.recovering else ():
        sender, receiver = members.get(channel.source), members.get(channel.target)
        report = _NO_REPORT
        if sender is not None and sender.heartbeat is not None:
            report = sender.heartbeat.outgoing.get(channel.id, _NO_REPORT)
        received = receiver.heartbeat.received.get(channel.id, 0) if receiver and receiver.heartbeat else 0
        found.append(
            ChannelStatus(
                id=channel.id,
                source=channel.source,
                target=channel.target,
                kind=channel.kind,
                incarnation=channel.incarnation,
                sent=report.sent,
                received=received,
                backlog_bytes=report.backlog_bytes,
                waiting_s=round(report.waiting_s, 3),
                connected=report.connected,
                reconnects=report.reconnects,
            )
        )
    return found


def dated_troubles(
    coordinator: Coordinator, watch: HealthMonitor, shown: list[ProcessStatus] | None = None
) -> list[Trouble]:
    """Return the troubles with their beginnings. These are right if it is called often."""
    if shown is None:
        shown = processes(coordinator.lifecycle, coordinator.members, coordinator.now_s())
    return watch.trouble_times.dated(troubles(coordinator, watch, shown), coordinator.clock.now_us())


def troubles(coordinator: Coordinator, watch: HealthMonitor, shown: list[ProcessStatus]) -> list[Trouble]:
    """Return the problems that need a person, worst first."""
    lifecycle, members = coordinator.lifecycle, coordinator.members
    found = []
    if coordinator.halted is not None:
        found.append(Trouble("halted", coordinator.halted))
    if coordinator.store.problem is not None:
        found.append(Trouble("store", coordinator.store.problem))
    if coordinator.refusal is not None:
        found.append(Trouble("restore", coordinator.refusal))
    found += [
        Trouble("blocked", f"{one.blocked}; until it returns, no snapshot completes") for one in shown if one.blocked
    ]
    found += [
        Trouble("waiting", f"process {member.process} cannot begin yet: {member.heartbeat.waiting}")
        for member in members.connected()
        if member.heartbeat is not None and member.heartbeat.waiting
    ]
    found += [
        Trouble("output", f"process {member.process} receives no more messages: {member.heartbeat.held_back}")
        for member in members.connected()
        if member.heartbeat is not None and member.heartbeat.held_back
    ]
    found += [Trouble("output", _unreleased(process)) for process in _gone_with_output(lifecycle.membership, members)]
    failing = coordinator.tracker.failing()
    if len(failing) >= FAILING_MIN:
        newest = failing[-1]
        problem = f"the last {len(failing)} snapshots were aborted; the newest, {newest.id}: {newest.reason}"
        found.append(Trouble("snapshots", problem))
    found += [Trouble("credit", describe_cycle(cycle)) for cycle in watch.cycles]
    found += [
        Trouble("unreadable", f"process {member.process} cannot read messages on {problem}")
        for member in members.connected()
        if member.heartbeat is not None
        for problem in member.heartbeat.unreadable.values()
    ]
    found += [
        Trouble("refused", f"channel {channel} of process {member.process} is refused by the other end: {why}")
        for member, channel, why in _refused(lifecycle.epoch, members)
    ]
    in_cycle = {channel.id for cycle in watch.cycles for channel in cycle}
    found += [
        Trouble("slow", f"channel {channel.id} has waited {waiting_s:.1f} s for credit from {channel.target}")
        for channel, waiting_s in watch.slow
        if channel.id not in in_cycle
    ]
    found += [
        Trouble("missing", _missing(coordinator.system, one))
        for one in shown
        if one.state == MISSING and not one.blocked
    ]
    return found


def _missing(system: System, process: ProcessStatus) -> str:
    problem = f"process {process.name} is not running: {process.trouble}; no snapshot can complete without it"
    if process.name in system.processes:
        return problem
    return f"{problem}; the coordinator's system does not have it: start its node with the one that it joined by"


def _gone_with_output(membership: Membership, members: Members) -> Iterator[str]:
    """Yield departed processes that are not connected and still have unreleased output."""
    for process in membership.departed:
        member = members.get(process)
        if membership.unreleased(process) and (member is None or not member.connected):
            yield process


def _unreleased(process: str) -> str:
    return (
        f"process {process} has left, but has not reported that all of its output is released; start its node again, "
        "with the same sinks"
    )


def _refused(epoch: int, members: Members) -> Iterator[tuple[Member, str, str]]:
    """Yield the channels of this epoch that the receiver refuses: nothing can be sent on them."""
    for member in members.connected():
        if member.heartbeat is not None and member.heartbeat.epoch == epoch:
            for channel, report in member.heartbeat.outgoing.items():
                if report.refused:
                    yield member, channel, report.refused
