"""The two ends of a channel, in the protocol of a process.

FIFO order and reliability are checked here, not assumed (M2): every message has an ordinal, and a gap, a duplicate or a
reordering raises `ProtocolViolation` before any state has changed.

After a rollback both ends continue from the frontiers of the snapshot (R1): ordinals and hashes go on as if nothing had
been sent or received after the cut.
"""

from collections.abc import Sequence

from strobe.errors import ProtocolViolation
from strobe.protocol.process.events import Breakpoint
from strobe.protocol.values.frames import CHAINS, FIFO, Frame, Frontier, InFlight, extend_unordered, seed_hash
from strobe.protocol.values.view import ChannelSpec


class Outgoing:
    """The sender's end: numbers messages and hashes the frames they travel in."""

    __slots__ = ("count", "extend", "fifo", "hash", "id", "seed", "spec")

    def __init__(self, spec: ChannelSpec) -> None:
        self.spec = spec
        self.id = spec.id
        self.fifo = spec.kind == FIFO
        self.extend = CHAINS[spec.hash]
        self.seed = seed_hash(spec.id, spec.incarnation, spec.hash)
        self.count = 0
        self.hash = self.seed

    def restore(self, sent: Frontier) -> None:
        """Continue from the sender's position at the cut."""
        self.count, self.hash = sent.count, sent.hash

    def number(self, count: int, body: bytes) -> int:
        """Count and hash the next frame of this channel; return the ordinal of its first message."""
        first = self.count + 1
        if self.fifo:
            extend = self.extend  # a local variable avoids the slower method lookup
            self.hash = extend(self.hash, first, count, body)
        else:
            self.hash = extend_unordered(self.hash, self.seed, first, count, body)
        self.count += count
        return first

    def seal(self, count: int, body: bytes, index: int, view: int) -> Frame:
        """Return the next frame of this channel."""
        return Frame(self.number(count, body), count, body, index, view)

    def frontier(self) -> Frontier:
        return Frontier(self.count, self.hash)


class Incoming:
    """The receiver's end: checks ordinals, and keeps what it needs to cut before or inside the last frame."""

    __slots__ = (
        "ahead",
        "begun",
        "count",
        "ended_at",
        "extend",
        "fifo",
        "hash",
        "hash_before_last",
        "id",
        "last",
        "next_ordinal",
        "restored_to",
        "seed",
        "spec",
    )

    def __init__(self, spec: ChannelSpec) -> None:
        self.spec = spec
        self.id = spec.id
        self.fifo = spec.kind == FIFO
        self.extend = CHAINS[spec.hash]
        self.seed = seed_hash(spec.id, spec.incarnation, spec.hash)
        self.count = 0
        self.hash = self.seed
        self.hash_before_last = self.seed
        self.last: Frame | None = None
        self.next_ordinal = 1
        # Unordered channels only: ordinals received ahead of a smaller one.
        self.ahead: set[int] = set()
        # The total number of messages, once the channel has ended (E2).
        self.ended_at: int | None = None
        # Messages up to this ordinal were sent before the rollback that restored this process (R1).
        self.restored_to = 0
        # Frames that the restored cut fell inside, by first ordinal: the number of their messages received before it.
        self.begun: dict[int, int] = {}

    def restore(self, received: Frontier, in_flight: Sequence[InFlight]) -> None:
        """Continue from the receiver's position at the cut. The frames `in_flight` are still to come, each whole."""
        self.count, self.hash = received.count, received.hash
        self.hash_before_last = received.hash
        self.restored_to = received.count + sum(item.frame.count - item.consumed for item in in_flight)
        self.begun = {item.frame.first_ordinal: item.consumed for item in in_flight if item.consumed}
        self.next_ordinal = min((item.frame.first_ordinal for item in in_flight), default=self.restored_to + 1)
        if not self.fifo:
            # By the proof, every message sent and not in flight had been received.
            due = {ordinal for item in in_flight for ordinal in item.frame.ordinals}
            self.ahead = set(range(self.next_ordinal, self.restored_to + 1)) - due

    def index_of(self, frame: Frame) -> int:
        """Return the cut index of `frame`; 0 if it was sent in an older epoch, which had its own indices."""
        return frame.index if frame.first_ordinal > self.restored_to else 0

    def check(self, frame: Frame, process: str, consumed: int = 0) -> None:
        """Raise ProtocolViolation if `frame` may not arrive now."""
        first = frame.first_ordinal
        if (consumed or self.begun) and consumed != self.begun.get(first, 0):
            problem = f"{consumed} messages of the frame from message {first} are recorded as received before the cut"
            raise ProtocolViolation(process, self.id, f"{problem}, not {self.begun.get(first, 0)}")
        if self.fifo:
            if first != self.next_ordinal:
                raise ProtocolViolation(process, self.id, self._fifo_problem(frame))
        elif first < self.next_ordinal or (self.ahead and not self.ahead.isdisjoint(range(first, first + frame.count))):
            raise ProtocolViolation(process, self.id, f"message {first} arrived again (duplicate)")

    def accept(self, frame: Frame, process: str, consumed: int = 0) -> None:
        """Count and hash `frame`, without the messages `consumed` earlier, or raise ProtocolViolation."""
        self.check(frame, process, consumed)
        if self.fifo:
            self.next_ordinal += frame.count
            extend = self.extend
            received = extend(self.hash, frame.first_ordinal, frame.count, frame.body)
        else:
            self._note_ordinals(frame)
            received = extend_unordered(self.hash, self.seed, frame.first_ordinal, frame.count, frame.body)
        self.hash_before_last = self.hash
        self.hash = received
        self.count += frame.count - consumed
        self.last = frame
        if consumed:
            del self.begun[frame.first_ordinal]

    def take_next(self, frame: Frame) -> bool:
        """Do the same as `accept` for a whole frame that is due on a FIFO channel. For any other, return False."""
        first = frame.first_ordinal
        if first != self.next_ordinal or self.begun or not self.fifo:
            return False
        count = frame.count
        self.next_ordinal = first + count
        self.hash_before_last = previous = self.hash
        extend = self.extend
        self.hash = extend(previous, first, count, frame.body)
        self.count += count
        self.last = frame
        return True

    def frontier(self, inside: Breakpoint | None = None) -> Frontier:
        """Return the receiving frontier; inside the last frame if `inside` is a breakpoint on this channel."""
        if inside is None or inside.channel != self.id:
            return Frontier(self.count, self.hash)
        last = self.last
        assert last is not None
        assert 0 < inside.consumed < last.count, "a breakpoint lies inside a frame"
        return Frontier(self.count - last.count + inside.consumed, self.hash_before_last)

    @property
    def drained(self) -> bool:
        return self.ended_at is not None and self.count >= self.ended_at

    def _fifo_problem(self, frame: Frame) -> str:
        got, expected = frame.first_ordinal, self.next_ordinal
        if got < expected:
            return f"message {got} arrived again or out of order: {expected} was expected (duplicate)"
        return f"message {got} arrived, but {expected} was expected ({got - expected} missing: a gap or a reordering)"

    def _note_ordinals(self, frame: Frame) -> None:
        ahead = self.ahead
        if frame.first_ordinal > self.next_ordinal:
            ahead.update(range(frame.first_ordinal, frame.first_ordinal + frame.count))
            return
        self.next_ordinal += frame.count
        while self.next_ordinal in ahead:
            ahead.remove(self.next_ordinal)
            self.next_ordinal += 1
