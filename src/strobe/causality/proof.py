"""The proof that a snapshot carries with it (P1), checked without a trace and without trusting the processes.

For a channel from p to q of the snapshot's view, let (s, S) be the count and running hash of what p had sent when it
recorded. Let (r, R) be those of what q had received when it recorded. With the recorded in-flight frames f1..fk,

    r + messages(f1..fk) = s     and     R extended by f1..fk = S.

Then q had received exactly a prefix of what p had sent (the hash chain has one value for each prefix), and the recorded
channel state is exactly the rest. On an unordered channel: a subset, and the rest of it. If that holds on every
channel, every message received before the cut was sent before it. So the cut is consistent.

The check runs over the view's processes and channels, so that a missing one is found. It takes time proportional to
channels plus in-flight frames. It does not show that processes are honest, nor that a state follows from its messages:
replay and invariants do that.
"""

from collections.abc import Iterator

import msgspec

from strobe.errors import SnapshotInconsistent
from strobe.protocol.values.fragment import Fragment, Snapshot
from strobe.protocol.values.frames import (
    CHAINS,
    FIFO,
    Frontier,
    InFlight,
    array_headers,
    can_hash,
    extend_unordered,
    seed_hash,
)
from strobe.protocol.values.view import ChannelSpec, View

ORDINAL_MAX = (1 << 64) - 1
"""An ordinal is hashed as an unsigned integer of eight bytes."""


class Finding(msgspec.Struct, frozen=True):
    """One defect: `subject` is the channel or process, `check` the rule that it breaks."""

    check: str
    subject: str
    problem: str

    def __str__(self) -> str:
        return f"{self.subject}: {self.problem} [{self.check}]"


class Verdict(msgspec.Struct, frozen=True):
    """The result of checking the proof of one snapshot."""

    snapshot_id: str
    findings: tuple[Finding, ...]
    channels: int
    in_flight_frames: int

    @property
    def holds(self) -> bool:
        return not self.findings

    def __str__(self) -> str:
        if self.holds:
            return f"{self.snapshot_id}: holds (self-consistent, signer unknown)"
        return f"{self.snapshot_id}: violated\n" + "\n".join(f"  {finding}" for finding in self.findings)


def verify(snapshot: Snapshot, view: View | None = None) -> Verdict:
    """Check the proof of `snapshot`, over `view` if it is given, else over its own view."""
    view = view or snapshot.view
    findings = list(_membership(snapshot, view))
    frames = 0
    for channel in view.channels:
        sender, receiver = snapshot.fragments.get(channel.source), snapshot.fragments.get(channel.target)
        if sender is None or receiver is None:
            continue  # reported by `_membership` already
        frames += len(receiver.in_flight.get(channel.id, ()))
        findings += _channel(channel, sender, receiver)
    return Verdict(str(snapshot.id), tuple(findings), len(view.channels), frames)


def require(snapshot: Snapshot) -> None:
    """Raise SnapshotInconsistent if the proof of `snapshot` does not hold."""
    verdict = verify(snapshot)
    if not verdict.holds:
        raise SnapshotInconsistent(verdict.snapshot_id, "; ".join(str(finding) for finding in verdict.findings))


def _membership(snapshot: Snapshot, view: View) -> Iterator[Finding]:
    outgoing: dict[str, set[str]] = {process: set() for process in view.processes}
    incoming: dict[str, set[str]] = {process: set() for process in view.processes}
    for channel in view.channels:
        outgoing.setdefault(channel.source, set()).add(channel.id)
        incoming.setdefault(channel.target, set()).add(channel.id)
    known = set(view.processes)
    for process in view.processes:
        if process not in snapshot.fragments:
            yield Finding("membership", process, "is in the view but has no fragment")
    for process, fragment in snapshot.fragments.items():
        if process not in known:
            yield Finding("membership", process, "has a fragment but is not in the view")
        if fragment.process != process:
            yield Finding("membership", process, f"has the fragment of {fragment.process}")
        if fragment.snapshot != snapshot.id:
            yield Finding("membership", process, f"has a fragment of the snapshot {fragment.snapshot}")
        if fragment.view != view.number:
            yield Finding("membership", process, f"recorded in view {fragment.view}, the snapshot is of {view.number}")
        received = fragment.received.keys() | fragment.in_flight.keys()
        strange = (fragment.sent.keys() - outgoing.get(process, set())) | (received - incoming.get(process, set()))
        for name in sorted(strange):
            yield Finding("membership", name, f"is recorded by {process}, but is not its channel in the view")


def _channel(channel: ChannelSpec, sender: Fragment, receiver: Fragment) -> Iterator[Finding]:
    sent, received = sender.sent.get(channel.id), receiver.received.get(channel.id)
    in_flight = receiver.in_flight.get(channel.id)
    if sent is None or received is None or in_flight is None:
        who = channel.source if sent is None else channel.target
        yield Finding("forgotten", channel.id, f"is in the view but not in the fragment of {who}")
        return
    if not can_hash(channel.kind, channel.hash):
        yield Finding("hash", channel.id, f"cannot be checked: no {channel.kind} channel has the hash {channel.hash}")
        return
    seed = seed_hash(channel.id, channel.incarnation, channel.hash)
    for who, frontier in ((channel.source, sent), (channel.target, received)):
        # A longer hash could contain the beginning of the next frame, and the rest of that would be hashed as a frame.
        if len(frontier.hash) != len(seed):
            problem = f"{who} has a hash of {len(frontier.hash)} bytes, and {channel.hash} gives {len(seed)}"
            yield Finding("hash", channel.id, problem)
        elif frontier.count == 0 and frontier.hash != seed:
            yield Finding("hash", channel.id, f"{who} counts no message, but its hash is not that of an unused channel")
    walked = _walk(channel, seed, received, in_flight)
    yield from walked.findings
    counted = list(_counts(channel, sent, received, walked.messages))
    yield from counted
    if not walked.findings and not counted and walked.hash != sent.hash:
        yield Finding("hash", channel.id, f"what was received and is in flight is not what {channel.source} sent")


class _Walked(msgspec.Struct):
    """The result of one pass over the in-flight frames of one channel."""

    findings: list[Finding]
    messages: int
    hash: bytes


def _walk(channel: ChannelSpec, seed: bytes, received: Frontier, in_flight: tuple[InFlight, ...]) -> _Walked:
    """Check each frame by itself, and on FIFO channels their sequence; count and hash on the way."""
    if channel.kind != FIFO:
        return _walk_unordered(channel, seed, received, in_flight)
    findings: list[Finding] = []
    due, messages, running, extend = received.count + 1, 0, received.hash, CHAINS[channel.hash]
    for place, item in enumerate(in_flight):
        frame, consumed = item.frame, item.consumed
        first, count, body = frame.first_ordinal, frame.count, frame.body
        right = first + consumed == due > 0 and 0 <= consumed < count and not (consumed and place)
        if right and bytes(body[:5]).startswith(array_headers(count)) and not findings:
            running = extend(running, first, count, body)
        else:
            findings += _in_order(channel, place, item, due)
            findings += _frame(channel, place, item)
        due = first + count
        messages += count - consumed
    return _Walked(findings, messages, running)


def _in_order(channel: ChannelSpec, place: int, item: InFlight, due: int) -> Iterator[Finding]:
    first = item.frame.first_ordinal + item.consumed
    if first != due:
        yield Finding("order", channel.id, f"message {first} is in flight, but {due} was expected")
    if item.consumed and place:
        problem = f"in-flight frame {place} cannot have messages consumed: it is not the first"
        yield Finding("frame", channel.id, problem)


def _walk_unordered(channel: ChannelSpec, seed: bytes, received: Frontier, in_flight: tuple[InFlight, ...]) -> _Walked:
    walked = _Walked([], 0, received.hash)
    seen: set[int] = set()
    for place, item in enumerate(in_flight):
        frame = item.frame
        if frame.first_ordinal in seen:
            problem = f"message {frame.first_ordinal + item.consumed} is in flight twice"
            walked.findings.append(Finding("order", channel.id, problem))
        seen.add(frame.first_ordinal)
        walked.findings += _frame(channel, place, item)
        walked.messages += frame.count - item.consumed
        if not walked.findings:
            walked.hash = extend_unordered(walked.hash, seed, frame.first_ordinal, frame.count, frame.body)
    return walked


def _frame(channel: ChannelSpec, place: int, item: InFlight) -> tuple[Finding, ...]:
    """Check a frame's own fields: its ordinals, how many messages it holds, how many of them were consumed."""
    first, count, consumed = item.frame.first_ordinal, item.frame.count, item.consumed
    possible = 0 < first <= ORDINAL_MAX - count
    if possible and 0 <= consumed < count and bytes(item.frame.body[:5]).startswith(array_headers(count)):
        return ()
    if not possible:
        problem = f"in-flight frame {place} cannot begin with message {first}"
    elif not 0 <= consumed < count:
        problem = f"in-flight frame {place} of {count} messages cannot have {consumed} consumed"
    else:
        problem = f"in-flight frame {place} claims {count} messages, but its body has another number"
    return (Finding("frame", channel.id, problem),)


def _counts(channel: ChannelSpec, sent: Frontier, received: Frontier, messages: int) -> Iterator[Finding]:
    if received.count > sent.count:
        problem = f"{channel.target} had received {received.count} messages, {channel.source} had sent {sent.count}"
        yield Finding("cut", channel.id, f"{problem}: the cut is inconsistent")
    elif received.count + messages != sent.count:
        lost = sent.count - received.count - messages
        what = f"{lost} missing" if lost > 0 else f"{-lost} too many"
        yield Finding(
            "count", channel.id, f"{sent.count} sent, {received.count} received, {messages} in flight: {what}"
        )
