"""Regular expressions as in JavaScript, with the flags g and m: written for Python, and looked for in linear time.

What the two write differently is rewritten, with an eye on escapes and character classes: `(?<name>...)`, `\\k<name>`,
`[]` and `[^]`, letters that an escape means nothing for, `{,n}`. docs/trace.md has what remains different.
"""

import re
from collections.abc import Callable, Iterator

from strobe.errors import UsageError

_FLAGS = re.MULTILINE | re.ASCII
_TOKEN = re.compile(
    r"\\k<(?P<same_as>\w+)>|\\(?P<escaped>.)|(?P<empty_class>\[\^?\])|(?P<group>\(\?<(?![=!]))|(?P<literal>\{(?=,\d*\}))|.",
    re.DOTALL,
)
_TOKEN_IN_CLASS = re.compile(r"\\(?P<escaped>.)|(?P<literal>[\[&|~])|.", re.DOTALL)
_AGAIN = re.compile(r"\\[1-9k]")
_ESCAPES = frozenset("dDwWsSbBnrtfvxuc0123456789")
_LEADING_RUN = re.compile(r"(\((?:\?:|\?<\w+>)?)?(?P<each>\.|\\[dDwWsS]|\[(?!\^?\])(?:\\.|[^\]\\])+\])[*+]\??(?(1)\))")


class Expression:
    """An expression that can be looked for. It may begin with a *run*: any number of characters of one kind, as `.*`.

    Where it is not found at the beginning of a run, it is not found further on in this run either: it would have been
    found with all of the run before that. So the next place to look is behind the run, and not each place in it, which
    takes the square of the length of a line.
    """

    def __init__(self, text: str, what: str) -> None:
        self._run: re.Pattern[str] | None = None
        try:
            translated, by_runs = _translate(text)
            self.pattern = re.compile(translated, _FLAGS)
            leading = _LEADING_RUN.match(text)
            if leading and by_runs:
                self._run = re.compile(_translate(leading["each"])[0] + "*", _FLAGS)
        except (re.error, RecursionError, OverflowError) as error:
            raise UsageError(f"the {what} is not a regular expression: {error}: {text}") from None
        self.groups = self.pattern.groupindex

    def find(self, text: str, looked: Callable[[int], None] = lambda _place: None) -> "Iterator[re.Match[str]]":
        """Yield what is found in `text`, in order. `looked` is told now and then how far all is looked at."""
        place = 0
        while place <= len(text):
            found = self.pattern.match(text, place) if self._run else self.pattern.search(text, place)
            if found is not None:
                yield found
                place = found.end() + (not found[0])
            elif self._run is None:
                return
            else:
                passed = self._run.match(text, place)
                assert passed is not None
                place = passed.end() + 1
            looked(place)


def _translate(expression: str) -> tuple[str, bool]:
    """Return the expression for Python, and whether it may be looked for by runs.

    Not if it is a choice of several, or if the same must come again that a group has found.
    """
    parts: list[str] = []
    depth, place, in_class, by_runs = 0, 0, False, True
    while place < len(expression):
        token = (_TOKEN_IN_CLASS if in_class else _TOKEN).match(expression, place)
        assert token is not None
        place, text = token.end(), token[0]
        parts.append(_rewritten(token))
        if in_class:
            in_class = text != "]"
        else:
            in_class = text == "["
            depth += text.startswith("(") - (text == ")")
            by_runs &= not (_AGAIN.match(text) or (text == "|" and depth == 0))
    return "".join(parts), by_runs


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
