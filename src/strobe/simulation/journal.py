"""What really happened in a simulated run, recorded independently of the protocols. Checkers compare with it.

A rollback undoes everything after its cut. So each epoch has its own journal, which begins with the surviving part of
the journal of the restored snapshot.
"""

from bisect import bisect_left, bisect_right

import msgspec

from strobe.protocol import FIFO, ChannelSpec, Snapshot


class AppliedMessage(msgspec.Struct, frozen=True, gc=False):
    """A message that a process has taken, and the epoch in which its frame was sent."""

    channel: str
    incarnation: int
    ordinal: int
    epoch: int


class ChannelJournal:
    """All messages ever sent on one channel incarnation, by ordinal."""

    __slots__ = ("epochs", "fifo", "payloads", "received_at", "received_first", "sent_at", "spec")

    def __init__(self, spec: ChannelSpec, epoch: int = 1) -> None:
        self.spec = spec
        # The epochs of messages: for each epoch with sends, the number of messages before it, and its number.
        self.epochs: list[tuple[int, int]] = [(0, epoch)]
        self.fifo = spec.kind == FIFO
        self.received_first = 0
        self.payloads: list[bytes] = []
        # Position of the event that sent the message; and of the event that received it, 0 while it is in flight.
        self.sent_at: list[int] = []
        self.received_at: list[int] = []

    def sent(self, position: int, payload: bytes) -> int:
        """Note a message; return its ordinal."""
        self.payloads.append(payload)
        self.sent_at.append(position)
        self.received_at.append(0)
        return len(self.payloads)

    def sent_in(self, ordinal: int) -> int:
        """Return the epoch in which a message was sent; the same ordinal may occur in two timelines."""
        return self.epochs[bisect_left(self.epochs, (ordinal,)) - 1][1]

    def until(self, source_position: int, target_position: int, epoch: int) -> "ChannelJournal":
        """Return the part of the journal that survives a rollback to this cut, as the start of `epoch`."""
        sent = self.sent_before(source_position)
        left = ChannelJournal(self.spec, epoch)
        left.payloads, left.sent_at = self.payloads[:sent], self.sent_at[:sent]
        left.received_at = [at if at <= target_position else 0 for at in self.received_at[:sent]]
        left.epochs = [*((before, number) for before, number in self.epochs if before < sent), (sent, epoch)]
        return left

    def sent_before(self, position: int) -> int:
        """Return how many messages the sender's first `position` events sent."""
        return bisect_right(self.sent_at, position)

    def in_flight(self, source_position: int, target_position: int) -> list[int]:
        """Return the ordinals sent before one position and not received before the other, in order of sending."""
        sent = self.sent_before(source_position)
        first = self._received_in_order(target_position)
        return [
            ordinal
            for ordinal, at in enumerate(self.received_at[first:sent], first + 1)
            if at == 0 or at > target_position
        ]

    def orphans(self, source_position: int, target_position: int) -> list[int]:
        """Return the ordinals received before one position but sent after the other: none, in a consistent cut."""
        sent = self.sent_before(source_position)
        return [ordinal for ordinal, at in enumerate(self.received_at[sent:], sent + 1) if 0 < at <= target_position]

    def _received_in_order(self, target_position: int) -> int:
        """Return the length of a prefix of messages that the receiver's first events have all received.

        On a FIFO channel positions of receipt rise, so it is all received messages, found by bisection: runs are long.
        """
        if not self.fifo:
            return 0
        while self.received_first < len(self.received_at) and self.received_at[self.received_first]:
            self.received_first += 1
        return bisect_right(self.received_at, target_position, 0, self.received_first)


class Journal:
    """The channel journals of a run, by channel id and incarnation."""

    def __init__(self, epoch: int = 1) -> None:
        self.epoch = epoch
        self.channels: dict[tuple[str, int], ChannelJournal] = {}

    def open(self, spec: ChannelSpec) -> ChannelJournal:
        """Return the journal of a channel; create it if the channel is new."""
        key = (spec.id, spec.incarnation)
        if key not in self.channels:
            self.channels[key] = ChannelJournal(spec, self.epoch)
        return self.channels[key]

    def until(self, snapshot: Snapshot, epoch: int) -> "Journal":
        """Return the part of the journal that survives a rollback to `snapshot`, as the start of `epoch`."""
        cut = {name: fragment.state.position for name, fragment in snapshot.fragments.items() if fragment.state}
        left = Journal(epoch)
        for spec in snapshot.view.channels:
            key = (spec.id, spec.incarnation)
            left.channels[key] = self.channels[key].until(cut[spec.source], cut[spec.target], epoch)
        return left
