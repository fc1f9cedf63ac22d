"""How many bytes and messages a snapshot has: read off its records, without reading a blob."""

from collections.abc import Mapping

from strobe.protocol.values.log_entries import ProcessRecord, Section
from strobe.storage.content.frames_blob import RECORD


def sizes(records: Mapping[str, ProcessRecord]) -> tuple[int, int, int]:
    """Return bytes of state, bytes in flight and messages in flight of these processes together."""
    state = sum(state_bytes(record) for record in records.values())
    sections = [section for record in records.values() for section in record.in_flight.values()]
    return state, sum(map(body_bytes, sections)), sum(section.messages for section in sections)


def body_bytes(section: Section) -> int:
    """Return how many bytes the frames of a channel carry."""
    return section.bytes - RECORD.size * section.frames


def state_bytes(record: ProcessRecord) -> int:
    return record.state.bytes + sum(delta.bytes for delta in record.deltas)


def written_bytes(record: ProcessRecord, begin: int) -> int:
    """Return how many bytes the process wrote for the snapshot that began at `begin`; the others are its parent's."""
    refs = (record.state, *record.deltas, *([record.frames] if record.frames is not None else ()))
    return sum(ref.bytes for ref in refs if ref.begin == begin)
