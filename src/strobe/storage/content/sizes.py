"""Computes the size of a snapshot from its records, without reading a blob."""

from collections.abc import Mapping

from strobe.protocol.values.log_entries import ProcessRecord, Section
from strobe.storage.content.frames_blob import RECORD


def sizes(records: Mapping[str, ProcessRecord]) -> tuple[int, int, int]:
    """Return the total state bytes, in-flight bytes and in-flight messages of these processes."""
    state = sum(state_bytes(record) for record in records.values())
    sections = [section for record in records.values() for section in record.in_flight.values()]
    return state, sum(map(body_bytes, sections)), sum(section.messages for section in sections)


def body_bytes(section: Section) -> int:
    """Return the total size of the frame bodies of a channel."""
    return section.bytes - RECORD.size * section.frames


def state_bytes(record: ProcessRecord) -> int:
    return record.state.bytes + sum(delta.bytes for delta in record.deltas)


def written_bytes(record: ProcessRecord, begin: int) -> int:
    """Return the bytes that the process wrote for the snapshot begun at `begin`, without blobs of its parent."""
    refs = (record.state, *record.deltas, *([record.frames] if record.frames is not None else ()))
    return sum(ref.bytes for ref in refs if ref.begin == begin)
