"""JavaScript regular expressions: what they match, and that matching takes linear time."""

import random
import re

import pytest

from strobe.errors import UsageError
from strobe.traces.clock_logs.javascript import Expression


def found(expression: str, text: str) -> list[str]:
    return [each[0] for each in Expression(expression, "parser").find(text)]


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
def test_expressions_find_what_javascript_finds(expression: str, text: str, expected: list[str]) -> None:
    assert found(expression, text) == expected


@pytest.mark.parametrize(
    "expression", ["(", "[", "a\\", r"\cA", "(?<=a*)b", "(?<a>.)|(?<a>..)", r"\k<none>", "(?<$>.)"]
)
def test_an_expression_that_python_cannot_run_is_refused(expression: str) -> None:
    with pytest.raises(UsageError, match="the parser is not a regular expression"):
        Expression(expression, "parser")


BEGINNINGS = [".*", "(?<h>.*)", "(?<h>.*?)", r"(?:\S*)", r"(\w+)", "[ab]*", r"[^\]a]+", r"(?<h>\S+)?", "^.*", "a?"]
PARTS = [" ", "a", ".", r"\S", "(?<g>b*)", "(?:a|b)", r"\n", "$", "^", r"\b", "(?=a)", "(?<=b)", "{.*}", "|", r"\1"]


def spans_at_every_place(pattern: "re.Pattern[str]", text: str) -> list[tuple[int, int]]:
    """Return the matches found by trying every place, as JavaScript does; an empty match advances by one place."""
    spans: list[tuple[int, int]] = []
    place = 0
    while place <= len(text) and (each := pattern.search(text, place)):
        spans.append(each.span())
        place = each.end() + (not each[0])
    return spans


def test_a_search_by_runs_finds_the_same_as_a_search_at_every_place() -> None:
    chosen = random.Random(1)
    compared = 0
    for _ in range(5000):
        expression = chosen.choice(BEGINNINGS) + "".join(chosen.choices(PARTS, k=chosen.randint(1, 4)))
        text = "".join(chosen.choices("ab \n{}]", k=chosen.randint(0, 20)))
        try:
            compiled = Expression(expression, "parser")
        except UsageError:
            continue
        expected = spans_at_every_place(compiled.pattern, text)
        found_by_runs = [each.span() for each in compiled.find(text)]
        assert found_by_runs == expected, (expression, text)
        compared += bool(expected)
    assert compared > 1000


@pytest.mark.parametrize("beginning", [".*", "(?<host>.*)", r"(?<host>\S*)", r"(?:[^\s]+)", r"\w*?"])
def test_the_rest_of_a_run_is_skipped_if_its_beginning_does_not_match(beginning: str) -> None:
    """Trying every place of a line of a million characters would take an hour."""
    text = "x" * 1_000_000 + "\nyes {}\n"
    places: list[int] = []
    (each,) = Expression(beginning + " {}", "parser").find(text, places.append)
    assert each[0] == "yes {}"
    assert len(places) < 10
