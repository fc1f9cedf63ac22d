"""Text that a peer may send: each sample attacks a terminal, a log, a page or a reader."""

import re

HOSTILE = {
    "colour": "\x1b[31mred",
    "title": "\x1b]0;owned\x07",
    "clipboard": "\x1b]52;c;cm0gLXJmIC8=\x07",
    "clear": "\x1b[2J\x1b[H",
    "c1": "\x9b31mred\x85next",
    "newline": "a\n12:00:00.000 error: process b ends: forged",
    "return": "innocent\rforged",
    "backspace": "rm\b\b  ",
    "null": "a\0b",
    "delete": "a\x7fb",
    "override": "a\u202egpj.exe",
    "isolate": "a\u2066b\u2069",
    "mark": "a\u200fb\u061cc",
    "invisible": "pay\u200bpal\ufeff\u2060",
    "separators": "a\u2028b\u2029c",
    "tags": "a\U000e0041b",
    "surrogate": "a\udc9bb\ud800",
    "markup": "[red]a[/red][link=http://evil.example]b[/link]",
    "unclosed": "[/]",
    "page": "</script><script>alert(1)</script><!--<script>",
    "label": 'a"} 1\nstrobe_epoch 99\\',
    "word": 'a" level="b',
}
"""Samples by name."""

LONG = "x" * 1_000_000

NOT_PLAIN = re.compile(
    "[\x00-\x1f\x7f-\x9f\u061c\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff\ud800-\udfff\U000e0000-\U000e007f]"
)
"""Characters that must not reach a terminal, a log or a page."""


def all_plain(printed: str) -> bool:
    """Return whether `printed` has none of these characters, apart from line breaks."""
    return NOT_PLAIN.search(printed.replace("\n", "")) is None
