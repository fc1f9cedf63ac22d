"""Text from outside, escaped so that it is safe to print."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.hostile_text import HOSTILE, LONG, NOT_PLAIN, all_plain

from strobe.plain_text import plain, plain_json, plain_lines


@pytest.mark.parametrize("kind", HOSTILE)
def test_hostile_text_becomes_one_plain_line(kind: str) -> None:
    assert NOT_PLAIN.search(plain(HOSTILE[kind])) is None


@given(st.text(st.characters()))
def test_any_text_becomes_one_plain_line_that_can_be_encoded(text: str) -> None:
    shown = plain(text)
    assert shown.isprintable() or "".join(shown.split()).isprintable()
    assert len(shown.splitlines()) <= 1
    shown.encode()


@pytest.mark.parametrize("text", ["", "grüße, 世界 — “→” 🎉", "a\u00a0b\u3000c", "C:\\new\\table", "[red]"])
def test_ordinary_text_stays_as_it_is(text: str) -> None:
    assert plain(text) == text == plain_lines(text)


def test_characters_are_escaped_as_in_python() -> None:
    assert plain("a\nb\x1b\x9b\u202e\udc80\U000e0041") == r"a\nb\x1b\x9b\u202e\udc80\U000e0041"


def test_line_breaks_of_strobes_own_text_are_kept() -> None:
    assert plain_lines("a\n  b\x1b\n\tc\u2028d") == "a\n  b\\x1b\n\\tc\\u2028d"


def test_long_text_is_cut_with_a_mark() -> None:
    assert plain(LONG) == f"{'x' * 10_000}… (990,000 more characters)"
    assert plain_lines("ab\n" * 3, 5) == "ab\nab… (4 more characters)"


@given(st.recursive(st.text(), lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner)))
def test_a_document_stays_the_same_document(value: object) -> None:
    document = json.dumps(value, ensure_ascii=False)
    shown = plain_json(document)
    assert all_plain(shown)
    assert json.loads(shown) == value
