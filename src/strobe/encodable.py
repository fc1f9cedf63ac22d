"""Encodes messages and frame bodies; names the part of a value that msgspec cannot encode, with path and type (E13)."""

import dataclasses
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import msgspec

from strobe.errors import UsageError

UNENCODABLE = (TypeError, ValueError, OverflowError, RecursionError, msgspec.MsgspecError)
"""Every exception that encoding a value may raise."""

_DEPTH_MAX = 100
_encode = msgspec.msgpack.Encoder().encode


def refusal(what: str, value: Any, error: BaseException) -> UsageError:
    """Return the error to raise after encoding `value` raised `error`; `what` describes the value to people."""
    path, part, problem = _culprit(type(value).__name__, value, error)
    kind = type(part).__name__
    text = " ".join(str(problem).split()) or type(problem).__name__
    if isinstance(problem, TypeError):
        text = "msgspec does not encode such objects; use a msgspec.Struct, numbers, text, bytes, lists or dicts"
    return UsageError(f"{what} cannot be encoded: {path}: {kind} ({text})")


def message_refusal(process: str, channel: str, message: Any, error: BaseException) -> UsageError:
    """Return the error to raise for a message that `process` sends on `channel`."""
    return refusal(f"the message that process {process!r} sends on {channel!r}", message, error)


def encode_message(process: str, channel: str, message: Any) -> bytes:
    """Return `message` encoded for sending; raise UsageError that names the part that cannot be encoded."""
    try:
        return _encode(message)
    except UNENCODABLE as error:
        raise message_refusal(process, channel, message, error) from error


def frame_body(payloads: Sequence[bytes]) -> bytes:
    """Return the MessagePack array of already encoded messages: the body of a frame."""
    count = len(payloads)
    if count == 1:
        return b"\x91" + payloads[0]
    if count < 16:
        return bytes((0x90 | count,)) + b"".join(payloads)
    return b"\xdd" + count.to_bytes(4, "big") + b"".join(payloads)


def array_body(messages: Sequence[Any]) -> memoryview:
    """Return `messages` encoded one after another: their MessagePack array, without its header."""
    count = len(messages)
    header_bytes = 1 if count < 1 << 4 else 3 if count < 1 << 16 else 5
    return memoryview(_encode(messages))[header_bytes:]


def listed(process: str, channel: str, messages: Any) -> list[Any]:
    """Return the messages given to `send_many` as a list; raise UsageError if they are not several messages."""
    if type(messages) is list:
        return messages
    if isinstance(messages, (str, bytes, bytearray, Mapping)) or not isinstance(messages, Iterable):
        raise UsageError(
            f"process {process!r} calls send_many on {channel!r} with a {type(messages).__name__}; give it a list of "
            "messages"
        )
    return list(messages)


def _culprit(path: str, value: Any, error: BaseException) -> tuple[str, Any, BaseException]:
    """Return the innermost part that cannot be encoded, with its path and the exception it raises."""
    within = {id(value)}
    for _ in range(_DEPTH_MAX):
        for step, part in _parts(value):
            if id(part) in within and isinstance(error, RecursionError):
                return path + step, part, RecursionError("it contains itself")
            problem = _problem(part)
            if problem is not None:
                path, value, error = path + step, part, problem
                within.add(id(part))
                break
        else:
            return path, value, error
    return path, value, error


def _problem(value: Any) -> BaseException | None:
    try:
        _encode(value)
    except UNENCODABLE as error:
        return error
    return None


def _parts(value: Any) -> Iterator[tuple[str, Any]]:
    """Yield each part of a container with its path; nothing for a value without parts."""
    if isinstance(value, msgspec.Struct):
        yield from ((f".{name}", getattr(value, name)) for name in value.__struct_fields__ if hasattr(value, name))
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        yield from ((f".{one.name}", getattr(value, one.name, None)) for one in dataclasses.fields(value))
    elif isinstance(value, Mapping):
        for key, one in value.items():
            yield f" key {key!r}", key
            yield f"[{key!r}]", one
    elif isinstance(value, (list, tuple)):
        yield from ((f"[{place}]", one) for place, one in enumerate(value))
    elif isinstance(value, (set, frozenset)):
        yield from ((f" member {one!r}", one) for one in value)
