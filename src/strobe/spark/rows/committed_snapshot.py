"""One committed snapshot in the form that the tables need, from a store or from memory."""

from collections.abc import Callable, Iterator, Mapping
from functools import cache, cached_property
from typing import Protocol

from strobe.causality.predicate_input import (
    PredicateInput,
    ProcessDeclaration,
    make_predicate_input,
    predicate_input_of,
)
from strobe.declarations import NOTHING
from strobe.errors import SnapshotCorrupt
from strobe.protocol.values.fragment import LocalState, Snapshot
from strobe.protocol.values.frames import InFlight
from strobe.protocol.values.ids import SnapshotId
from strobe.protocol.values.log_entries import BlobRef, Manifest, ProcessRecord, Section
from strobe.protocol.values.view import View
from strobe.spark.log.snapshot_reader import SnapshotReader
from strobe.spark.rows.frontier_arrays import End, FrontierArrays, view_columns
from strobe.storage.content.blobs import blob_name
from strobe.storage.content.frames_blob import unpack_frames
from strobe.storage.content.manifests import to_state
from strobe.storage.content.summaries import sizes
from strobe.storage.entries.commit_decoder import OncePerObject

InFlightFrames = dict[str, tuple[InFlight, ...]]
Sections = dict[str, Section]


def _count_frames(sections: Sections) -> dict[str, int]:
    return {channel: section.frames for channel, section in sections.items()}


def _unpack_nothing(sections: Sections) -> InFlightFrames:
    return unpack_frames(memoryview(b""), sections)


# Most processes have nothing in flight, and their manifests encode that in the same way each time.
_frame_counts = OncePerObject(_count_frames)
_no_frames = OncePerObject(_unpack_nothing)


class ProcessPart:
    """The recorded frontiers of one process, and the labels of its fragment; `in_flight` counts frames."""

    __slots__ = ("by", "in_flight", "received", "sent", "snapshot", "view")

    def __init__(
        self,
        by: str,
        snapshot: str,
        view: int,
        sent: Mapping[str, End],
        received: Mapping[str, End],
        in_flight: Mapping[str, int],
    ) -> None:
        self.by, self.snapshot, self.view = by, snapshot, view
        self.sent, self.received, self.in_flight = sent, received, in_flight


class CommittedSnapshot(Protocol):
    """A snapshot that was committed, at `log_position`."""

    id: str
    log_position: int
    parent: str | None
    protocol: str
    initiators: tuple[str, ...]
    view: View
    started_us: int
    completed_us: int

    @property
    def state_bytes(self) -> int: ...
    @property
    def in_flight_bytes(self) -> int: ...
    @property
    def sent(self) -> FrontierArrays:
        """The ends recorded by the senders of the channels."""

    @property
    def received(self) -> FrontierArrays:
        """The ends recorded by the receivers of the channels."""

    @property
    def recorded(self) -> dict[str, ProcessPart]:
        """The part of each process, by its key in the snapshot."""

    def positions(self) -> Iterator[tuple[str, int]]:
        """Yield the event count of each process that has a state."""

    def frames(self) -> Iterator[tuple[str, InFlightFrames]]:
        """Yield the frames in flight that each process recorded."""

    def states(self, process: str | None = None) -> Iterator[tuple[str, LocalState]]:
        """Yield the state of each process that has one, or of one `process`."""

    def predicate_input(self) -> PredicateInput:
        """Return what each process declares at the cut, and what the messages in flight carry."""

    def verify_states(self) -> None:
        """Read every byte of the states; raise StoreError if one is wrong."""


class _WithEnds:
    """A snapshot that collects its channel ends once."""

    view: View

    @cached_property
    def recorded(self) -> dict[str, ProcessPart]:
        raise NotImplementedError

    @cached_property
    def sent(self) -> FrontierArrays:
        return FrontierArrays(
            {process: part.sent for process, part in self.recorded.items()}, view_columns[self.view].senders
        )

    @cached_property
    def received(self) -> FrontierArrays:
        parts = {process: part.received for process, part in self.recorded.items()}
        return FrontierArrays(parts, view_columns[self.view].receivers)


class StoredSnapshot(_WithEnds):
    """A snapshot of a store: its manifest, and its blobs, read on demand and verified."""

    def __init__(
        self, snapshot_id: str, log_position: int, manifest: Manifest, read: Callable[[BlobRef], memoryview]
    ) -> None:
        self.id, self.log_position, self.parent = snapshot_id, log_position, manifest.parent
        self.protocol, self.initiators, self.view = manifest.protocol, manifest.initiators, manifest.view
        self.started_us, self.completed_us = manifest.started_us, manifest.completed_us
        self.manifest = manifest
        # A blob that was read for verification is not read again for its rows.
        self._read = cache(read)

    @property
    def state_bytes(self) -> int:
        return sizes(self.manifest.processes).state_bytes

    @property
    def in_flight_bytes(self) -> int:
        return sizes(self.manifest.processes).in_flight_bytes

    @cached_property
    def recorded(self) -> dict[str, ProcessPart]:
        return {
            process: ProcessPart(
                process, self.id, self.view.number, record.sent, record.received, _frame_counts[record.in_flight]
            )
            for process, record in self.manifest.processes.items()
        }

    def positions(self) -> Iterator[tuple[str, int]]:
        return ((process, record.position) for process, record in self.manifest.processes.items())

    def frames(self) -> Iterator[tuple[str, InFlightFrames]]:
        for process, record in self.manifest.processes.items():
            try:
                if record.frames is None:
                    yield process, _no_frames[record.in_flight]
                else:
                    yield process, unpack_frames(self._read(record.frames), record.in_flight)
            except ValueError as error:
                raise self._corrupt(process, record, error) from error

    def states(self, process: str | None = None) -> Iterator[tuple[str, LocalState]]:
        for name, record in self.manifest.processes.items():
            if process in (None, name):
                yield name, to_state(record, self._read)

    def predicate_input(self) -> PredicateInput:
        declarations = {
            process: ProcessDeclaration(record.declared or NOTHING, len(record.timers))
            for process, record in self.manifest.processes.items()
        }
        return make_predicate_input(self.id, self.view, declarations, dict(self.frames()))

    def verify_states(self) -> None:
        for record in self.manifest.processes.values():
            for ref in (record.state, *record.deltas):
                self._read(ref)

    def _corrupt(self, process: str, record: ProcessRecord, error: ValueError) -> SnapshotCorrupt:
        place = blob_name(record.frames) if record.frames is not None else "its manifest"
        return SnapshotCorrupt(self.id, f"{place}, of process {process}: {error}")


def read_snapshot(reader: SnapshotReader, snapshot_id: str, position: int) -> StoredSnapshot:
    """Return the snapshot that was committed at `position`. Its blobs are read when its rows need them."""
    return StoredSnapshot(snapshot_id, position, reader.commit(position, snapshot_id).manifest, reader.blob)


class SnapshotInMemory(_WithEnds):
    """A snapshot that is in no store; its log position is invented."""

    def __init__(self, snapshot: Snapshot, log_position: int) -> None:
        self.id, self.log_position = str(snapshot.id), log_position
        self.parent: str | None = None
        self.protocol, self.initiators, self.view = snapshot.protocol, snapshot.initiators, snapshot.view
        self.started_us, self.completed_us = snapshot.started_us, snapshot.completed_us
        self.state_bytes, self.in_flight_bytes = snapshot.state_bytes, snapshot.in_flight_bytes
        self._snapshot, self._fragments = snapshot, snapshot.fragments

    @cached_property
    def recorded(self) -> dict[str, ProcessPart]:
        return {
            process: ProcessPart(
                fragment.process,
                str(fragment.snapshot),
                fragment.view,
                fragment.sent,
                fragment.received,
                {channel: len(items) for channel, items in fragment.in_flight.items()},
            )
            for process, fragment in self._fragments.items()
        }

    def positions(self) -> Iterator[tuple[str, int]]:
        return ((process, state.position) for process, state in self.states())

    def frames(self) -> Iterator[tuple[str, InFlightFrames]]:
        for process, fragment in self._fragments.items():
            yield process, fragment.in_flight

    def states(self, process: str | None = None) -> Iterator[tuple[str, LocalState]]:
        for name, fragment in self._fragments.items():
            if fragment.state is not None and process in (None, name):
                yield name, fragment.state

    def predicate_input(self) -> PredicateInput:
        return predicate_input_of(self._snapshot)

    def verify_states(self) -> None:
        """Nothing was read, so nothing can be damaged."""


def epoch_of(snapshot: CommittedSnapshot) -> int:
    return SnapshotId.parse(snapshot.id).epoch
