"""The trace recorder (R4): keeps what a replay needs, as lines of a trace file, up to a size limit.

`ordinals` keeps the order of sends and receives; `full` also keeps payloads and times, so that the processes can be
replayed. A trace truncated at its limit is still a valid trace of the first part of the run; only its last event may
lack sends. A channel that is reopened after its process left and rejoined counts from 1 again, so it has its own name
in the trace.
"""

from typing import TYPE_CHECKING

import msgspec

from strobe.causality.trace_lines import (
    NO_PAYLOAD,
    VERSION,
    EventContext,
    Internal,
    Line,
    Receive,
    Record,
    Send,
    TraceHeader,
    encode_header,
    encode_lines,
)
from strobe.errors import UsageError
from strobe.protocol import ChannelSpec, SnapshotId, View

if TYPE_CHECKING:
    from strobe.simulation.node import Node

LEVELS = ("off", "ordinals", "full")
BYTES_MAX = 256 * 1024 * 1024
_LINES_AT_ONCE = 1024

_decode = msgspec.msgpack.Decoder().decode
_to_json = msgspec.json.Encoder().encode


class Recorder:
    """Collects trace lines; `full`: with payloads and times."""

    def __init__(
        self, view: View, seed: int, level: str, system: str | None = None, bytes_max: int = BYTES_MAX
    ) -> None:
        if level not in LEVELS[1:]:
            raise UsageError(f"a trace is recorded as {' or '.join(LEVELS[1:])}, not {level!r}")
        self.full = level == "full"
        self.seed = seed
        self.system = system
        self.bytes_left = bytes_max
        self.truncated = False
        self.channels: dict[str, ChannelSpec] = {}
        self.processes: dict[str, None] = {}
        self._pending: list[Line] = []
        self._encoded: list[bytes] = []
        self._names: dict[tuple[str, int], str] = {}
        self.view_installed(view)

    def view_installed(self, view: View) -> None:
        """Add the processes and channels of a view."""
        self.processes.update(dict.fromkeys(view.processes))
        for spec in view.channels:
            name = spec.id if spec.id not in self.channels else f"{spec.id}#{spec.incarnation}"
            if self._names.setdefault((spec.id, spec.incarnation), name) == name:
                self.channels[name] = msgspec.structs.replace(spec, id=name)

    def received(self, node: "Node", channel: str, ordinal: int) -> None:
        name = self._names[channel, node.received_journals[channel].spec.incarnation]
        self._add(Receive(node.name, node.position, name, ordinal, payload=self._seen(node), at=self._at(node)))

    def internal(self, node: "Node", name: str) -> None:
        self._add(Internal(node.name, node.position, name, payload=self._seen(node), at=self._at(node)))

    def sent(self, node: "Node", channel: str, ordinal: int, payload: bytes) -> None:
        name = self._names[channel, node.sent_journals[channel].spec.incarnation]
        kept = msgspec.Raw(_to_json(_decode(payload))) if self.full else NO_PAYLOAD
        self._add(Send(node.name, node.position, name, ordinal, payload=kept))

    def recorded(self, node: "Node", snapshot: SnapshotId) -> None:
        self._add(Record(node.name, node.position, str(snapshot)))

    def text(self) -> bytes:
        """Return the trace file."""
        self._encode()
        header = TraceHeader(VERSION, tuple(self.processes), tuple(self.channels.values()), self.seed, self.system)
        return encode_header(header) + b"".join(self._encoded)

    def _seen(self, node: "Node") -> msgspec.Raw:
        """Return what the process sees from this event on, if it has changed."""
        context = node.context
        if not (self.full and context.changed):
            return NO_PAYLOAD
        context.changed = False
        return msgspec.Raw(_to_json(EventContext(context.inputs, context.outputs, context.random.state)))

    def _at(self, node: "Node") -> float | None:
        return node.network.scheduler.now_us / 1_000_000 if self.full else None

    def _add(self, line: Line) -> None:
        if self.truncated:
            return
        self._pending.append(line)
        if len(self._pending) >= _LINES_AT_ONCE:
            self._encode()

    def _encode(self) -> None:
        lines, self._pending = self._pending, []
        if not lines or self.truncated:
            return
        text = encode_lines(lines)
        self.bytes_left -= len(text)
        if self.bytes_left < 0:
            self.truncated = True
        else:
            self._encoded.append(text)
