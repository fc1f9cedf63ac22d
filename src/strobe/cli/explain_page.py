"""The page of `strobe explain --html`: every scene as a space-time diagram to step through. It needs no server."""

from collections.abc import Sequence
from importlib.resources import files

import msgspec

from strobe.simulation.explanations import Scene

_PLACE = "/* scenes */ []"


def page(scenes: Sequence[Scene]) -> str:
    """Return the whole page; scenes are embedded as data, and drawn in the browser."""
    # "</" would end the script element early, whatever stands in a text.
    data = msgspec.json.encode(list(scenes)).decode().replace("</", "<\\/")
    return files("strobe.cli").joinpath("explain.html").read_text(encoding="utf-8").replace(_PLACE, data)
