"""What really happened in a simulated run, kept apart from the protocols: the truth that checkers compare with."""

from bisect import bisect_right

from strobe.protocol import FIFO, ChannelSpec


class ChannelJournal:
    """All messages ever sent on one channel incarnation, by ordinal."""

    __slots__ = ("fifo", "payloads", "received_at", "received_first", "sent_at", "spec")

    def __init__(self, spec: ChannelSpec) -> None:
        self.spec = spec
        self.fifo = spec.kind == FIFO
        self.received_first = 0
        self.payloads: list[bytes] = []
        # Position of the event that sent the message; and of the one that received it, 0 while it is on the way.
        self.sent_at: list[int] = []
        self.received_at: list[int] = []

    def sent(self, position: int, payload: bytes) -> int:
        """Note a message; return its ordinal."""
        self.payloads.append(payload)
        self.sent_at.append(position)
        self.received_at.append(0)
        return len(self.payloads)

    def sent_before(self, position: int) -> int:
        """Return how many messages the sender's first `position` events have sent."""
        return bisect_right(self.sent_at, position)

    def in_flight(self, source_position: int, target_position: int) -> list[int]:
        """Return the ordinals sent before the one cut and not received before the other, in order of sending."""
        sent = self.sent_before(source_position)
        first = self._received_in_order(target_position)
        return [
            ordinal
            for ordinal, at in enumerate(self.received_at[first:sent], first + 1)
            if at == 0 or at > target_position
        ]

    def orphans(self, source_position: int, target_position: int) -> list[int]:
        """Return the ordinals received before the one cut but sent after the other: none, in a consistent cut."""
        sent = self.sent_before(source_position)
        return [ordinal for ordinal, at in enumerate(self.received_at[sent:], sent + 1) if 0 < at <= target_position]

    def _received_in_order(self, target_position: int) -> int:
        """Return a number of messages, from the first, that the receiver's first events have all received.

        On a FIFO channel positions of receipt rise, so it is all of them, found by bisection: runs are long.
        """
        if not self.fifo:
            return 0
        while self.received_first < len(self.received_at) and self.received_at[self.received_first]:
            self.received_first += 1
        return bisect_right(self.received_at, target_position, 0, self.received_first)


class Journal:
    """The channel journals of a run, by channel id and incarnation."""

    def __init__(self) -> None:
        self.channels: dict[tuple[str, int], ChannelJournal] = {}

    def open(self, spec: ChannelSpec) -> ChannelJournal:
        """Return the journal of a channel, a new one where it is new."""
        key = (spec.id, spec.incarnation)
        if key not in self.channels:
            self.channels[key] = ChannelJournal(spec)
        return self.channels[key]
