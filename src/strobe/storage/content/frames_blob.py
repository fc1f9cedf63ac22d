"""The frames blob: the channel state of one process, one incoming channel after the other.

Each frame is a record of 24 bytes, little-endian (first_ordinal u64, count u32, consumed u32, body_bytes u64), followed
by its body, exactly as it was sent: the proof hashes these bytes and nothing derived from them (P1). In the manifest, a
`Section` gives the location of each channel.
"""

import struct
from collections.abc import Mapping, Sequence
from typing import cast

from strobe.protocol.values.frames import Frame, InFlight
from strobe.protocol.values.log_entries import Section
from strobe.storage.files.backend import Piece

RECORD = struct.Struct("<QIIQ")
HASHED_BYTES = 12
"""The number of bytes of a record (first ordinal and count) that are hashed with the body."""


def pack_frames(channels: Mapping[str, Sequence[InFlight]]) -> tuple[list[Piece], dict[str, Section]]:
    """Return the pieces of the blob (an empty list if nothing is in flight), and the section of each channel."""
    pieces: list[Piece] = []
    sections: dict[str, Section] = {}
    offset = 0
    for channel, items in channels.items():
        for item in items:
            frame = item.frame
            pieces.append(RECORD.pack(frame.first_ordinal, frame.count, item.consumed, len(frame.body)))
            pieces.append(frame.body)
        size = sum(RECORD.size + len(item.frame.body) for item in items)
        messages = sum(item.frame.count - item.consumed for item in items)
        sections[channel] = Section(offset, size, len(items), messages)
        offset += size
    return pieces, sections


def unpack_frames(blob: memoryview, sections: Mapping[str, Section]) -> dict[str, tuple[InFlight, ...]]:
    """Return the in-flight frames of each channel, with bodies as views into `blob`; raise ValueError if damaged."""
    channels: dict[str, tuple[InFlight, ...]] = {}
    end = 0
    for channel, section in sorted(sections.items(), key=lambda item: (item[1].offset, item[1].bytes)):
        if section.offset != end:
            raise ValueError(f"the section of channel {channel} begins at byte {section.offset} instead of {end}")
        end += section.bytes
        channels[channel] = _unpack_section(blob[section.offset : end], channel, section)
    if end != len(blob):
        raise ValueError(f"its sections cover {end} bytes of {len(blob)}")
    return {channel: channels[channel] for channel in sections}


def _unpack_section(part: memoryview, channel: str, section: Section) -> tuple[InFlight, ...]:
    items: list[InFlight] = []
    unpack, record_bytes, end = RECORD.unpack_from, RECORD.size, len(part)
    offset = messages = 0
    while offset < end:
        if offset + record_bytes > end:
            raise ValueError(f"channel {channel} ends within the record of a frame")
        first_ordinal, count, consumed, size = unpack(part, offset)
        body_at = offset + record_bytes
        offset = body_at + size
        if offset > end or consumed > count:
            raise ValueError(f"channel {channel} has a frame at ordinal {first_ordinal} that does not fit")
        # Read-only views are enough to hash, decode or send these bytes, and avoid a copy of the blob.
        items.append(InFlight(Frame(first_ordinal, count, cast(bytes, part[body_at:offset])), consumed))
        messages += count - consumed
    if (offset, len(items), messages) != (section.bytes, section.frames, section.messages):
        raise ValueError(
            f"channel {channel} has {len(items)} frames with {messages} messages, not what its section says"
        )
    return tuple(items)
