"""Regular expressions as JavaScript has them: what they find, and that they find it in linear time."""

import pytest

from strobe.errors import UsageError
from strobe.traces.clock_logs.javascript import compile_expression


def found(expression: str, text: str) -> list[str]:
    return [each[0] for each in compile_expression(expression, "parser").finditer(text)]


@pytest.mark.parametrize(
    ("expression", "text", "expected"),
    [
        (r"(?<host>\w)", "ab", ["a", "b"]),
        (r"\(?<(?<host>\w+)>", "<a> (<b>", ["<a>", "(<b>"]),
        (r"\\(?<host>\w)", r"\a b", [r"\a"]),
        (r"[(?<]+(?<host>\w)", "(?<a", ["(?<a"]),
        (r"[\](?<]+x", "](?<x", ["](?<x"]),
        (r"(?<=a)b(?<!c)", "ab b", ["b"]),
        (r"(?<host>.)\k<host>", "abba", ["bb"]),
        (r"\\k<a>", r"\k<a>", [r"\k<a>"]),
        (r"(.)\1", "abba", ["bb"]),
        (r"a[^]b", "a\nb", ["a\nb"]),
        (r"a[]|b", "ab", ["b"]),
        (r"[[&&||~~]+", "[&|~", ["[&|~"]),
        (r"[^\]]+", "a]b", ["a", "b"]),
        (r"\a\Z\e\/", "aZe/", ["aZe/"]),
        (r"[\b\d]", "1\b", ["1", "\b"]),
        (r"a{,2}", "aa{,2}", ["a{,2}"]),
        (r"a{1,2}{.*}", "aa{x}", ["aa{x}"]),
        (r"^\x61\u0062$", "ab\nab", ["ab", "ab"]),
    ],
)
def test_they_find_what_javascript_finds(expression: str, text: str, expected: list[str]) -> None:
    assert found(expression, text) == expected


@pytest.mark.parametrize(
    "expression", ["(", "[", "a\\", r"\cA", "(?<=a*)b", "(?<a>.)|(?<a>..)", r"\k<none>", "(?<$>.)"]
)
def test_what_python_cannot_do_is_refused(expression: str) -> None:
    with pytest.raises(UsageError, match="the parser is not a regular expression"):
        compile_expression(expression, "parser")
