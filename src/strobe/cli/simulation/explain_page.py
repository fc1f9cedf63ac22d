"""The page of `strobe explain --html`: every scene as a space-time diagram to step through. It needs no server."""

from collections.abc import Sequence
from importlib.resources import files

from strobe.plain_text import json_of
from strobe.simulation.explain.explanations import Scene

_PLACE = "/* scenes */ []"


def page(scenes: Sequence[Scene]) -> str:
    """Return the whole page; scenes are embedded as data, and drawn in the browser."""
    # Escape "<": "</" in a text would end the script element early, and "<!--" would begin a comment.
    data = json_of(list(scenes), str).replace("<", "\\u003c")
    return files("strobe.cli").joinpath("explain.html").read_text(encoding="utf-8").replace(_PLACE, data)
