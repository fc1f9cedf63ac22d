"""The live trace recorder (R4): collects the events of one process and hands them to a writer thread in segments.

Level `ordinals` keeps the order of sends and receives. Level `full` also keeps payloads, times and inputs, so that the
process can be replayed along the trace. The duties of a host:

1. `set_channels` before the first event, and whenever the channels of the process have changed.
2. `event` and `received` before the handlers run: their sends, and a cut inside a frame, are noted after them.
3. `sent` when a frame is sealed. Recording seals all frames first, so all sends before a cut are noted before it.
4. `recorded` when the process has recorded for a snapshot.
5. `close` at the end of the epoch.

All of these run in the thread of the process, and cost one note per frame. A segment ends at each snapshot and at a
maximum size; the recorder's own thread encodes and writes it. The total size is bounded: the oldest segments are
removed, up to a segment that begins at a snapshot. If the events between two snapshots fill the bound, recording pauses
until the next snapshot.
"""

import logging
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec.structs import replace

from strobe.errors import MissingExtra
from strobe.protocol import ChannelSpec, Fragment
from strobe.runtime.settings import NodeSettings
from strobe.traces.notes import Lead, Notes, RecordedNote, Sent, trace_name
from strobe.user_code import summary_of

if TYPE_CHECKING:
    from strobe.runtime.tracing.segment_writer import TraceWriter

LINES_MAX = 1 << 22
"""Maximum number of messages per segment, so that no segment takes long to write or to read."""
FRAMES_MAX = 1 << 16
BODY_BYTES_MAX = 32 << 20
WAITING_MAX = 4
"""Maximum number of full segments waiting to be written; beyond that the trace pauses, to bound memory."""

logger = logging.getLogger("strobe.node")

_encode = msgspec.msgpack.Encoder().encode


class Tracer:
    """Records one process in one epoch. `begun` is the fragment that it was restored from, if any."""

    def __init__(self, writer: "TraceWriter", *, full: bool, begun: Fragment | None = None) -> None:
        self.full = full
        self._writer = writer
        self._begun = begun
        self._thread = ThreadPoolExecutor(1, "strobe-trace")
        self._waiting: list[tuple[Future[None], float]] = []
        self._names: dict[str, str] = {}
        self._processes: dict[str, None] = {}
        self._channels: dict[str, ChannelSpec] = {}
        self._sight: tuple[tuple[str, ...], tuple[str, ...]] = ((), ())
        self._seen = True
        self._random: Callable[[], int | None] = lambda: None
        self._last = begun.state.position if begun is not None and begun.state is not None else 0
        self._begin_segment(str(begun.snapshot) if begun is not None else None)

    def set_channels(
        self,
        processes: Iterable[str],
        channels: Iterable[ChannelSpec],
        inputs: tuple[str, ...],
        outputs: tuple[str, ...],
        random: Callable[[], int | None],
    ) -> None:
        """Set the inputs and outputs of the process from its next event on.

        `processes` are those of the view; `channels` are all channels of this process, also ending ones. `random`
        returns the state of its random generator.
        """
        specs = tuple(channels)
        self._processes.update(dict.fromkeys(processes))
        for spec in specs:
            name = self._names[spec.id] = trace_name(spec)
            self._channels[name] = replace(spec, id=name)
        if self._begun is not None:
            self._thread.submit(self._writer.begin_at, self._begun, specs)
            self._begun = None
        self._sight, self._random, self._seen = (inputs, outputs), random, False

    def event(self, position: int, name: str, at: float | None, record: Any = None) -> None:
        """Note event number `position`: `start`, `leave`, `own`, `timer NAME`, or `source NAME` with its `record`."""
        self._note(Lead(position, 1, 0, None, name, at if self.full else None, self._payload(position, record)))

    def received(
        self,
        channel: str,
        first_ordinal: int,
        count: int,
        first_position: int,
        at: float | None,
        one_event: bool = False,
    ) -> None:
        """Note the receipt of `count` messages, each an event or all `one_event`; `at` is the time that they read."""
        at, payload = (at, self._payload(first_position)) if self.full else (None, None)
        step = 0 if one_event else 1
        self._note(Lead(first_position, count, first_ordinal, self._names[channel], None, at, payload, step))

    def sent(self, channel: str, first_ordinal: int, count: int, events: Sequence[int], body: Any) -> None:
        """Note a sealed frame. `events`: for each event that sent some of it, its position and the messages before it.

        Example: of 256 messages, event 7 sent the first 200 and event 9 the others: `events` is 7, 0, 9, 200.
        """
        self._sends.append(Sent(self._names[channel], first_ordinal, count, events, body if self.full else None))
        self._lines += count
        if self.full:
            self._bytes += len(body)

    def recorded(self, snapshot: str, position: int) -> None:
        """Begin a new segment: the process has recorded for `snapshot`, after `position` events."""
        rest = self._take_back(position)
        self._records.append(RecordedNote(position, snapshot))
        self._last = position
        self._end_segment("snapshot")
        self._begin_segment(snapshot)
        # A replay may begin here: repeat the inputs and outputs.
        self._seen = False
        if rest is not None:
            self._note(replace(rest, payload=self._payload(rest.position)))

    def close(self, wait: bool = False) -> None:
        """End the trace. The last segment is written in the background, before this program ends."""
        self._end_segment("closed")
        self._thread.shutdown(wait=wait)

    def _note(self, lead: Lead) -> None:
        # Only before the next note, not right after a frame: a cut may fall inside that frame.
        frames = len(self._leads) + len(self._sends)
        if self._lines >= LINES_MAX or frames >= FRAMES_MAX or self._bytes >= BODY_BYTES_MAX:
            self._end_segment("size")
            self._begin_segment(None)
        self._leads.append(lead)
        self._lines += lead.length
        self._last = lead.last_position

    def _take_back(self, position: int) -> Lead | None:
        """Split the current frame at `position` if a cut falls inside it; return the events after the cut."""
        assert self._last >= position, "frames are noted before they are received"
        if self._last == position:
            return None
        whole = self._leads.pop()
        before = position + 1 - whole.position
        if before:
            self._leads.append(replace(whole, length=before))
        return replace(whole, position=position + 1, length=whole.length - before, ordinal=whole.ordinal + before)

    def _payload(self, position: int, record: Any = None) -> bytes | None:
        """Return what a replay needs at event `position`, if anything (`EventContext`)."""
        if not self.full or (self._seen and record is None):
            return None
        fields: dict[str, Any] = {} if record is None else {"record": record}
        if not self._seen:
            self._seen = True
            fields |= {"inputs": self._sight[0], "outputs": self._sight[1], "random": self._random()}
        try:
            return _encode(fields)
        except Exception as error:  # noqa: BLE001 -- a user's record that cannot be encoded must not fail the process
            self._flaw = f"event {position} cannot be noted: {summary_of(error)}"
            return None

    def _begin_segment(self, snapshot: str | None) -> None:
        self._snapshot = snapshot
        self._leads: list[Lead] = []
        self._sends: list[Sent] = []
        self._records: list[RecordedNote] = []
        self._lines = self._bytes = 0
        self._flaw = ""

    def _end_segment(self, reason: str) -> None:
        notes = Notes(
            self._snapshot,
            self._last,
            tuple(self._processes),
            tuple(self._channels.values()),
            self._leads,
            self._sends,
            self._records,
            reason,
        )
        self._waiting = [(future, size) for future, size in self._waiting if not future.done()]
        keeping_up = sum(size for _, size in self._waiting) < WAITING_MAX
        flaw = self._flaw or ("" if keeping_up else "more happens than can be written")
        write = partial(self._writer.skip, reason=flaw) if flaw else self._writer.write
        future = self._thread.submit(write, notes)
        future.add_done_callback(_log_failure)
        self._waiting.append((future, self._fullness))

    @property
    def _fullness(self) -> float:
        """The size of this segment as a fraction of the maximum."""
        frames = len(self._leads) + len(self._sends)
        return max(self._lines / LINES_MAX, frames / FRAMES_MAX, self._bytes / BODY_BYTES_MAX)


def _log_failure(future: "Future[None]") -> None:
    error = future.exception()
    if error is not None:
        logger.error("a segment of the trace was not written", exc_info=error)


def open_tracer(
    process: str,
    epoch: int,
    settings: NodeSettings,
    trace: Path,
    make_trace: Callable[[], object],
    begun: Fragment | None,
    joined: int,
) -> Tracer:
    """Return the recorder of `process` in `epoch`, in the directory `trace`. It begins at `begun`, or joins with view
    `joined`.
    """
    try:
        from strobe.runtime.tracing.segment_writer import TraceWriter
    except ImportError as error:
        raise MissingExtra("live", "a trace of live processes") from error
    writer = TraceWriter(trace, process, epoch, settings.trace, settings.trace_bytes_max, joined, make_trace)
    return Tracer(writer, full=settings.trace == "full", begun=begun)
