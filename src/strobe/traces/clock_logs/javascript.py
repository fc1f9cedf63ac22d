"""JavaScript regular expressions with the flags g and m: translated to Python, and searched in linear time.

Differences in syntax are translated, with care for escapes and character classes: `(?<name>...)`, `\\k<name>`, `[]` and
`[^]`, unknown escapes, `{,n}`. docs/trace.md lists the differences that remain.
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
    """A compiled expression. It may begin with a *run*: any number of characters of one kind, such as `.*`.

    If it does not match at the beginning of a run, it does not match later in this run either: such a match could be
    extended back to the beginning of the run. So the search continues after the run and does not try each position in
    it, which would take quadratic time in the length of a line.
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
        """Yield the matches in `text`, in order. `looked` is called regularly with the offset searched so far."""
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
    """Return the expression for Python, and whether it may be searched by runs.

    Not if it has alternatives at the top level, or a back-reference to a group.
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
    """Return the Python form of a JavaScript token; most of them are the same."""
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
