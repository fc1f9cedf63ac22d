"""Termination detection by Dijkstra and Scholten (1980), as a pure state machine for one process (G4).

It is for computations that begin at one process, the root: every other process is idle, and sends nothing, until it
receives a message. Each message is eventually answered by one signal. The rules:

    DS1  A message engages a process that is not engaged: the process owes the answer to that sender, its parent.
    DS2  A message to an engaged process (the root always is) is answered at once.
    DS3  An idle process that has answers to all messages it sent answers its parent, and is no longer engaged.
    DS4  When the root is idle and has answers to all messages it sent, the computation has terminated.

Why it is right: a process that is not engaged is idle, and all messages it sent are answered. An engaged process owes
its parent an answer, so the parent cannot disengage before it: the engaged processes form a tree, rooted at the root.
When DS4 holds, the root has no child, so no other process is engaged. No message is in flight either, since it would be
unanswered. Why it ends: when all processes are idle and no message is in flight, some leaf of the tree can disengage,
and so on up to the root.
"""

from typing import assert_never

import msgspec

from strobe.errors import ProtocolViolation, UsageError


class WorkSent(msgspec.Struct, frozen=True):
    """The process has sent a message."""


class WorkReceived(msgspec.Struct, frozen=True):
    """A message arrived on `channel`."""

    channel: str


class SignalReceived(msgspec.Struct, frozen=True):
    """The answer to a message arrived on `channel`."""

    channel: str


class EventEnded(msgspec.Struct, frozen=True):
    """An event of the process has ended. `active`: the process may do more without receiving anything."""

    active: bool


class SendSignal(msgspec.Struct, frozen=True):
    """Answer a message that came on `channel`."""

    channel: str


class AnnounceTermination(msgspec.Struct, frozen=True):
    """The computation has ended at every process."""


DetectionEvent = WorkSent | WorkReceived | SignalReceived | EventEnded
DetectionEffect = SendSignal | AnnounceTermination


class Engagement(msgspec.Struct):
    """The whole state of a detector: the parent that it owes an answer, and the number of answers it waits for."""

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
            return [SendSignal(channel)]  # DS2
        self.state.parent = channel  # DS1
        return []

    def _answered(self, channel: str) -> list[DetectionEffect]:
        if self.state.deficit == 0:
            raise ProtocolViolation(self.process, channel, "a signal has come that answers no message")
        self.state.deficit -= 1
        return []

    def _ended(self, active: bool) -> list[DetectionEffect]:
        if active:
            self._require_engaged("is active")
            self.state.terminated = False  # the root has begun again by itself
            return []
        return self._leave() if self.state.deficit == 0 else []

    def _leave(self) -> list[DetectionEffect]:
        parent, self.state.parent = self.state.parent, None
        if parent is not None:
            return [SendSignal(parent)]  # DS3
        if self.root and not self.state.terminated:
            self.state.terminated = True
            return [AnnounceTermination()]  # DS4
        return []

    def _require_engaged(self, what: str) -> None:
        if not self.engaged:
            raise UsageError(
                f"process {self.process!r} {what} before any message has come to it; detection of termination is for a "
                "computation that begins at one process: make it the root, and let active() of the others be false"
            )
