"""Splits an expression into words, numbers, strings and signs, each with its column."""

import re
from collections.abc import Iterator
from typing import NamedTuple

from strobe.expressions.nodes import ExpressionError

NAME, NUMBER, STRING, SIGN, END = "name", "number", "string", "sign", "end"

_LENGTH_MAX = 200_000
_NUMBER_LENGTH_MAX = 24
_ESCAPES = {"n": "\n", "t": "\t", "\\": "\\", '"': '"', "'": "'"}

# Every alternative begins with a different character, and no repetition is nested, so matching takes linear time.
_TOKEN = re.compile(
    r"""(?P<space>\s+)
      | (?P<number>\d+(?:\.\d+)?(?:[eE][+-]?\d+)?)
      | (?P<name>[^\W\d]\w*)
      | (?P<quoted>`[^`]*`)
      | (?P<string>"(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*')
      | (?P<sign>==|!=|<=|>=|[-+*/%<>().,])""",
    re.VERBOSE | re.DOTALL,
)
_SLIPS = {
    "=": "to compare, write ==",
    "&": "write and",
    "|": "write or",
    "!": "write not, or !=",
    '"': "this string does not end",
    "'": "this string does not end",
    "`": "this name does not end",
}


class Token(NamedTuple):
    """A token of an expression. A `quoted` name is a name even if it is a keyword."""

    kind: str
    text: str
    column: int
    value: int | float | str | None = None
    quoted: bool = False


def tokenize(text: str) -> list[Token]:
    """Return the tokens of `text`, followed by END."""
    if len(text) > _LENGTH_MAX:
        raise ExpressionError(text, _LENGTH_MAX, f"it is longer than {_LENGTH_MAX:,} characters, the maximum")
    return [*_tokens(text), Token(END, "", len(text) + 1)]


def _tokens(text: str) -> Iterator[Token]:
    place = 0
    while place < len(text):
        column = place + 1
        found = _TOKEN.match(text, place)
        if found is None:
            character = text[place]
            problem = _SLIPS.get(character, "this character has no meaning here; put a name that has it in quotes")
            raise ExpressionError(text, column, f"{character!r}: {problem}")
        place = found.end()
        match found.lastgroup:
            case "space":
                continue
            case "number":
                yield Token(NUMBER, found[0], column, _number(text, found[0], column))
            case "name":
                yield Token(NAME, found[0], column)
            case "quoted":
                yield Token(NAME, found[0][1:-1], column, quoted=True)
            case "string":
                yield Token(STRING, found[0], column, _string(text, found[0], column))
            case _:
                yield Token(SIGN, found[0], column)


def _number(text: str, digits: str, column: int) -> int | float:
    if len(digits) > _NUMBER_LENGTH_MAX:
        raise ExpressionError(text, column, f"a number has at most {_NUMBER_LENGTH_MAX} digits")
    return int(digits) if digits.isdigit() else float(digits)


def _string(text: str, quoted: str, column: int) -> str:
    pieces: list[str] = []
    inside = enumerate(quoted[1:-1], start=1)
    for place, character in inside:
        if character != "\\":
            pieces.append(character)
            continue
        _, escaped = next(inside)
        if escaped not in _ESCAPES:
            raise ExpressionError(
                text, column + place, f"\\{escaped} stands for nothing; there are: \\n \\t \\\\ \\\" \\'"
            )
        pieces.append(_ESCAPES[escaped])
    return "".join(pieces)
