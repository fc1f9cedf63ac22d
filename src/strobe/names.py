"""The rule for names of processes, channels, sources and sinks.

Names appear in logs, on terminals, in snapshot ids and in file names. So a name has 1 to 200 characters, at most 200
bytes in UTF-8, and does not begin with a dot. It has no slash, and no character that controls a terminal or the
direction of text. Its only white space is single spaces between words. Any other character is allowed: `a->b`,
`till-7`, `orders.eu`, `till 7`, `Käse`.
"""

import re
from typing import Annotated

import msgspec

from strobe.errors import UsageError

NAME_BYTES_MAX = 200
_UNPRINTABLE = (
    r"\x00-\x1f\x7f-\x9f\xad"  # control characters, soft hyphen
    r"\u061c\u180e\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff"  # invisible characters, and direction controls
    r"\ud800-\uf8ff\ufff0-\uffff\U000e0000-\U0010ffff"  # surrogates, private use, specials, tags
)
_WORD = rf"[^\s/{_UNPRINTABLE}]+"
NAME_PATTERN = rf"\A(?!\.){_WORD}(?: {_WORD})*\Z"

Name = Annotated[str, msgspec.Meta(min_length=1, max_length=NAME_BYTES_MAX, pattern=NAME_PATTERN)]
"""A name in decoded data. `check_name` also checks its length in bytes."""

RULE = (
    f"a name has 1 to {NAME_BYTES_MAX} bytes, all of them printable, without slashes and double spaces, and does not "
    "begin with a dot"
)

_name = re.compile(NAME_PATTERN)


def check_name(what: str, name: str) -> None:
    """Raise UsageError if `name` cannot be the name of a `what`."""
    if not is_name(name):
        raise UsageError(f"{shown(name)} cannot be the name of a {what}: {RULE}; rename it")


def in_words(error: Exception) -> str:
    """Return the message of a decoding error, with the rule for names in words instead of a pattern."""
    return str(error).replace(f"Expected `str` matching regex {NAME_PATTERN!r}", f"Expected a name ({RULE})")


def is_name(text: str) -> bool:
    """Return whether `text` is a valid name."""
    return _name.match(text) is not None and len(text.encode()) <= NAME_BYTES_MAX


def shown(text: str, characters_max: int = 80) -> str:
    """Return `text` as errors show it: quoted, and cut after `characters_max` characters."""
    return repr(text) if len(text) <= characters_max else f"{text[:characters_max]!r}..."
