"""From MessagePack to what SQL can ask about by field (S3): JSON text in the Python workers, VARIANT in the JVM.

What JSON cannot say is left as bytes, never guessed at: extension types, keys that are neither text nor numbers, broken
encodings. Byte strings become base64 text, timestamps ISO 8601 text, and infinities and not-a-number null.
"""

from collections.abc import Iterator
from typing import Any

import msgspec
import pyarrow as pa

from strobe.spark import columns as c

JSON = "json"

MESSAGES = pa.schema(
    [
        (c.SNAPSHOT_ID, pa.string()),
        (c.CHANNEL, pa.string()),
        (c.PROCESS, pa.string()),
        (c.ORDINAL, pa.int64()),
        (JSON, pa.string()),
        (c.PAYLOAD_BYTES, pa.binary()),
    ]
)

_messages = msgspec.msgpack.Decoder(list[msgspec.Raw])
_Message = tuple[str, str, str, int, str | None, bytes]


def to_json(data: bytes) -> str | None:
    """Return one MessagePack value as JSON text, or None where it is no such value or JSON cannot say it."""
    try:
        return msgspec.json.encode(msgspec.msgpack.decode(data)).decode()
    except (msgspec.MsgspecError, TypeError, ValueError, RecursionError):
        return None


def split_frames(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Turn rows of `channel_frames` into one row for each message that has not been received."""
    for batch in batches:
        # Not carried over from one batch to the next: Spark bounds the bytes of what it hands over.
        rows = [message for frame in batch.to_pylist() for message in _messages_of(frame)]
        if rows:
            yield _batch(rows)


def _messages_of(frame: dict[str, Any]) -> Iterator[_Message]:
    """A body that cannot be split is one row that has all of it, so that it is seen and not dropped."""
    first, consumed, body = frame[c.FIRST_ORDINAL], frame[c.CONSUMED], frame[c.BYTES]
    where = frame[c.SNAPSHOT_ID], frame[c.CHANNEL], frame[c.PROCESS]
    try:
        raws = _messages.decode(body)
    except (msgspec.MsgspecError, ValueError):
        yield *where, first + consumed, None, body
        return
    for offset, raw in enumerate(raws[consumed:], start=consumed):
        message = bytes(raw)
        yield *where, first + offset, to_json(message), message


def _batch(rows: list[_Message]) -> pa.RecordBatch:
    columns = [pa.array(values, field.type) for values, field in zip(zip(*rows, strict=True), MESSAGES, strict=True)]
    return pa.RecordBatch.from_arrays(columns, schema=MESSAGES)
