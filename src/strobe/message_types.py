"""The message types of a system: they decode messages, and determine what a process may send (E13).

A message of another type could not be decoded by its receiver, or would lose the fields that a subclass adds. So it is
refused where it is sent.
"""

import dataclasses
from collections.abc import Sequence
from operator import countOf
from types import NoneType, UnionType
from typing import Any, NewType, Union, get_args, get_origin, is_typeddict

import msgspec

from strobe.encodable import encode_message, frame_body
from strobe.errors import UsageError


class MessageTypes:
    """The declared types of a system's messages. Without any, messages are plain values, and all may be sent."""

    def __init__(self, declared: tuple[Any, ...]) -> None:
        self.decoder = _decoder(declared)
        self._declared = declared
        self._classes = {one for kind in declared for one in _classes(kind)}

    def has(self, kind: type) -> bool:
        """Return whether every message of exactly this class has a declared type."""
        if not self._declared or kind in self._classes or object in self._classes:
            return True
        if any(_is_same_class(kind, one) for one in self._classes):
            self._classes.add(kind)
            return True
        return False

    def require(self, process: str, channel: str, message: Any) -> None:
        """Raise UsageError if `message`, which `process` sends on `channel`, is of no declared type.

        A plain value is accepted if it decodes as a declared type: an int for a float, or a dict for a struct.
        """
        if self.has(type(message)):
            return
        reason = ""
        if not (isinstance(message, msgspec.Struct) or dataclasses.is_dataclass(message)):
            try:
                self.decoder.decode(frame_body([encode_message(process, channel, message)]))
                return
            except msgspec.ValidationError as error:
                reason = f" ({error})"
        known = ", ".join(getattr(kind, "__name__", str(kind)) for kind in self._declared)
        raise UsageError(
            f"process {process!r} sends a message of type {type(message).__name__} on {channel!r}, which is not one of "
            f"the system's message types: {known}{reason}; add it to System(messages=[...])"
        )

    def require_all(self, process: str, channel: str, messages: Sequence[Any]) -> None:
        """Raise UsageError if one of `messages` is of no declared type."""
        if not self._declared or not messages:
            return
        # Mostly they are all of one class: counting is faster than looking each class up.
        kind = type(messages[0])
        if self.has(kind) and countOf(map(type, messages), kind) == len(messages):
            return
        for message in messages:
            self.require(process, channel, message)


def _decoder(declared: tuple[Any, ...]) -> "msgspec.msgpack.Decoder[list[Any]]":
    """Return the decoder for the body of a frame."""
    if not declared:
        return msgspec.msgpack.Decoder(list[Any])
    union: Any = declared[0]
    for kind in declared[1:]:
        union = Union[union, kind]  # noqa: UP007 -- `|` is not defined for every type
    try:
        return msgspec.msgpack.Decoder(list[union])
    except TypeError as error:
        raise UsageError(
            f"the message types cannot be distinguished: {error}. Give each a tag: class Name(msgspec.Struct, tag=True)"
        ) from error


def _is_same_class(kind: Any, declared: Any) -> bool:
    """Return whether two struct types come from the same source, which was loaded twice.

    A program with its own loop has its types in `__main__`, and the system file names them in a module.
    """
    structs = all(isinstance(one, type) and issubclass(one, msgspec.Struct) for one in (kind, declared))
    return structs and _shape(kind) == _shape(declared)


def _shape(kind: type[msgspec.Struct]) -> tuple[Any, ...]:
    config = kind.__struct_config__
    return kind.__qualname__, kind.__struct_encode_fields__, config.tag, config.tag_field, config.array_like


def _classes(kind: Any) -> set[type]:
    """Return the classes of which every message has the declared type `kind`; `object` if it may be of any class.

    Lists of a type, typed dicts and values with limits have no such class: each message is decoded to find out.
    """
    if get_origin(kind) in (Union, UnionType):
        return {one for member in get_args(kind) for one in _classes(member)}
    if isinstance(kind, NewType):
        return _classes(kind.__supertype__)
    if kind is None:
        return {NoneType}
    if kind is Any:
        return {object}
    return {kind} if isinstance(kind, type) and not is_typeddict(kind) else set()
