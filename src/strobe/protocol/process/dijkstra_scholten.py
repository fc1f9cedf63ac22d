"""Detection of termination by Dijkstra and Scholten (1980), as a pure state machine for one process (G4).

It is for computations that begin at one process, the root: every other one is idle, and sends nothing, before a message
comes. Each message is answered by one signal, in the end. The rules:

    D1  A message that comes to a process which is not engaged engages it: its answer is owed, to that parent.
    D2  A message that comes to an engaged process (the root always is) is answered at once.
    D3  A process that is idle and has had answers to all that it has sent answers its parent: it is not engaged then.
    D4  When the root is idle and has had answers to all that it has sent, the computation has terminated.

Why that is right: a process that is not engaged is idle, and nothing that it has sent is without an answer. An engaged
one owes its parent an answer, so the parent cannot leave before it: the engaged are a tree, with the root as its root.
When the root could leave, it has no child left, so nobody else is engaged, and no message is on its way, for it would
be without an answer. And in the end that comes about: when all are idle and no message is on its way, some leaf of the
tree can leave, and so on up to the root.
"""

from typing import assert_never

import msgspec

from strobe.errors import ProtocolViolation, UsageError


class WorkSent(msgspec.Struct, frozen=True):
    """The process has sent a message."""


class WorkReceived(msgspec.Struct, frozen=True):
    """A message has come on `channel`."""

    channel: str


class SignalReceived(msgspec.Struct, frozen=True):
    """The answer to a message has come on `channel`."""

    channel: str


class EventEnded(msgspec.Struct, frozen=True):
    """The process has done what it did; it is `active` if it may do more without receiving anything."""

    active: bool


class SendSignal(msgspec.Struct, frozen=True):
    """Answer a message that came on `channel`."""

    channel: str


class AnnounceTermination(msgspec.Struct, frozen=True):
    """All has ended, everywhere."""


DetectionEvent = WorkSent | WorkReceived | SignalReceived | EventEnded
DetectionEffect = SendSignal | AnnounceTermination


class Engagement(msgspec.Struct):
    """The whole state of a detector: whom it owes an answer, and how many answers it waits for."""

    parent: str | None = None
    deficit: int = 0
    terminated: bool = False


class DijkstraScholten:
    """The detector of one process."""

    def __init__(self, process: str, root: bool, engagement: Engagement | None = None) -> None:
        self.process = process
        self.root = root
        self.state = engagement or Engagement()

    @property
    def engaged(self) -> bool:
        return self.root or self.state.parent is not None

    def handle(self, event: DetectionEvent) -> list[DetectionEffect]:
        """Return the effects of `event`, in the order they must happen."""
        match event:
            case WorkSent():
                return self._sent()
            case WorkReceived():
                return self._received(event.channel)
            case SignalReceived():
                return self._answered(event.channel)
            case EventEnded():
                return self._ended(event.active)
            case _:
                assert_never(event)

    def _sent(self) -> list[DetectionEffect]:
        self._require_engaged("sends a message")
        self.state.deficit += 1
        self.state.terminated = False
        return []

    def _received(self, channel: str) -> list[DetectionEffect]:
        if self.engaged:
            return [SendSignal(channel)]  # D2
        self.state.parent = channel  # D1
        return []

    def _answered(self, channel: str) -> list[DetectionEffect]:
        if self.state.deficit == 0:
            raise ProtocolViolation(self.process, channel, "a signal has come that answers no message")
        self.state.deficit -= 1
        return []

    def _ended(self, active: bool) -> list[DetectionEffect]:
        if active:
            self._require_engaged("is active")
            self.state.terminated = False  # the root has begun anew, by itself
            return []
        return self._leave() if self.state.deficit == 0 else []

    def _leave(self) -> list[DetectionEffect]:
        parent, self.state.parent = self.state.parent, None
        if parent is not None:
            return [SendSignal(parent)]  # D3
        if self.root and not self.state.terminated:
            self.state.terminated = True
            return [AnnounceTermination()]  # D4
        return []

    def _require_engaged(self, what: str) -> None:
        if not self.engaged:
            raise UsageError(
                f"process {self.process!r} {what} before any message has come to it; detection of termination is for a "
                "computation that begins at one process: make it the root, and let active() of the others be false"
            )
