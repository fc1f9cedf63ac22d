r"""Makes text from outside safe to print: names, reasons and messages of peers, files and stores.

Terminals interpret escape codes, web pages direction characters, and a log has one event per line. So everything that
prints (the command line, the log, drawings, metrics) passes its text through here. Unprintable characters (control
characters, escape codes, direction overrides, invisible and line-breaking characters, lone surrogates) are written as
in Python: `\n`, `\x1b`, `\u202e`. All other text is unchanged.
"""

import json
import re
from collections.abc import Callable
from typing import Any
from unicodedata import category

LENGTH_MAX = 10_000
"""Longer text is cut."""
_NOT_ASCII_OR_DELETE = re.compile("[^\x00-\x7e]")


def plain(text: str, length_max: int = LENGTH_MAX) -> str:
    """Return `text` as one line without control characters, cut after `length_max` characters."""
    return _line(shortened(text, length_max))


def plain_lines(text: str, length_max: int = LENGTH_MAX) -> str:
    """Do the same as `plain`, but keep line breaks. For text with our own line breaks."""
    return "\n".join(map(_line, shortened(text, length_max).split("\n")))


def plain_json(document: str) -> str:
    r"""Return the same JSON document with `\u…` instead of unprintable characters."""
    return _NOT_ASCII_OR_DELETE.sub(_json_escaped, document)


def json_of(value: Any, enc_hook: Callable[[Any], Any]) -> str:
    """Return `value` as a JSON document on one line, without unprintable characters."""
    import msgspec

    try:
        return plain_json(msgspec.json.encode(value, enc_hook=enc_hook).decode())
    except UnicodeEncodeError:  # a lone surrogate, for example in a file name that is not UTF-8
        builtins = msgspec.to_builtins(value, str_keys=True, enc_hook=enc_hook)
        return plain_json(json.dumps(builtins, ensure_ascii=False))


def shortened(text: str, length_max: int = LENGTH_MAX) -> str:
    """Return `text`, cut after `length_max` characters with a note of how many are missing."""
    more = len(text) - length_max
    return f"{text[:length_max]}… ({more:,} more characters)" if more > 0 else text


def _line(text: str) -> str:
    return text if text.isprintable() else "".join(map(_escaped, text))


def _escaped(character: str) -> str:
    # Spaces of other widths are text, although Python does not count them as printable.
    shown = character.isprintable() or category(character) == "Zs"
    return character if shown else character.encode("unicode_escape").decode("ascii")


def _json_escaped(found: re.Match[str]) -> str:
    character = found.group()
    if _escaped(character) == character:
        return character
    if category(character) == "Cs":
        return f"\\{_escaped(character)}"  # as text: many JSON parsers refuse a lone surrogate
    units = character.encode("utf-16-be")
    return "".join(f"\\u{units[place : place + 2].hex()}" for place in range(0, len(units), 2))
