"""Regular expressions as in JavaScript, with the flags g and m, written for Python.

What the two write differently is rewritten, with an eye on escapes and character classes: `(?<name>...)`, `\\k<name>`,
`[]` and `[^]`, letters that an escape means nothing for, `{,n}`. docs/trace.md has what remains different.
"""

import re

from strobe.errors import UsageError

_FLAGS = re.MULTILINE | re.ASCII
_TOKEN = re.compile(
    r"\\k<(?P<same_as>\w+)>|\\(?P<escaped>.)|(?P<empty_class>\[\^?\])|(?P<group>\(\?<(?![=!]))|(?P<literal>\{(?=,\d*\}))|.",
    re.DOTALL,
)
_TOKEN_IN_CLASS = re.compile(r"\\(?P<escaped>.)|(?P<literal>[\[&|~])|.", re.DOTALL)
_ESCAPES = frozenset("dDwWsSbBnrtfvxuc0123456789")


def compile_expression(text: str, what: str) -> "re.Pattern[str]":
    """Return the pattern that `text` is; raise UsageError where it is none, with what it was to be."""
    try:
        return re.compile(_translate(text), _FLAGS)
    except (re.error, RecursionError, OverflowError) as error:
        raise UsageError(f"the {what} is not a regular expression: {error}: {text}") from None


def _translate(expression: str) -> str:
    parts: list[str] = []
    place, in_class = 0, False
    while place < len(expression):
        token = (_TOKEN_IN_CLASS if in_class else _TOKEN).match(expression, place)
        assert token is not None
        place = token.end()
        parts.append(_rewritten(token))
        in_class = token[0] != "]" if in_class else token[0] == "["
    return "".join(parts)


def _rewritten(token: "re.Match[str]") -> str:
    """Return what Python writes for a token of JavaScript; most of them are the same."""
    match token.lastgroup:
        case "same_as":
            return f"(?P={token['same_as']})"
        case "empty_class":
            return "(?!)" if token[0] == "[]" else r"[\s\S]"
        case "group":
            return "(?P<"
        case "escaped" if token["escaped"].isalpha() and token["escaped"] not in _ESCAPES:
            return token["escaped"]
        case "literal":
            return f"\\{token[0]}"
    return token[0]
