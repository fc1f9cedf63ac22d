"""A system of three processes, and a view without one of its processes."""

from typing import Any

from tests.runtime.scripted import Scripted

from strobe.process import Channel, System
from strobe.protocol import View


def trio(**outside: Any) -> System:
    names = ("a", "b", "c")
    channels = [Channel(p, q) for p in names for q in names if p != q]
    return System({name: Scripted() for name in names}, channels, **outside)


def without(view: View, number: int, process: str) -> View:
    channels = tuple(spec for spec in view.channels if process not in (spec.source, spec.target))
    return View(number, tuple(name for name in view.processes if name != process), channels)
