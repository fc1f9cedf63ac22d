"""The space-time diagram of a trace: every event and message is in its place, and no text is taken for markup."""

import re
from xml.etree import ElementTree

import msgspec
import pytest
from tests.causality.sample import HEADER, LINES

from strobe.causality.trace import Trace
from strobe.causality.trace_lines import Internal, Receive, Record, Send, header_of
from strobe.errors import UsageError
from strobe.protocol.values.view import ChannelSpec, View
from strobe.traces import drawing
from strobe.traces.drawing import to_html, to_svg

SVG = "{http://www.w3.org/2000/svg}"


def drawn(trace: Trace) -> ElementTree.Element:
    return ElementTree.fromstring(to_svg(trace))


def circles(picture: ElementTree.Element) -> dict[str, tuple[float, float]]:
    """Return the place of each event, by its title."""
    return {
        str(circle.findtext(f"{SVG}title")).split(":")[0]: (float(circle.attrib["cx"]), float(circle.attrib["cy"]))
        for circle in picture.iter(f"{SVG}circle")
    }


def test_every_event_is_below_the_events_it_depends_on() -> None:
    trace = Trace(HEADER, LINES)
    places = circles(drawn(trace))
    assert len(places) == 6
    for event in trace.events():
        below = [f"event {event.position - 1} of {event.process}"]
        lead = trace.event(event).lead
        if isinstance(lead, Receive):
            below.append(str(trace.sent_in(lead.channel, lead.ordinal)))
        assert all(places[str(event)][1] > places[other][1] for other in below if other in places)


def test_every_message_has_an_arrow_and_those_never_received_are_dashed() -> None:
    picture = drawn(Trace(HEADER, [*LINES, Send("b", 4, "b->a", 3)]))
    kinds = [path.attrib["class"] for path in picture.iter(f"{SVG}path") if "class" in path.attrib]
    assert sorted(kinds) == ["message"] * 5 + ["message lost"]


def test_cuts_are_drawn_and_inconsistent_ones_stand_out() -> None:
    lines = [
        Internal("a", 1),
        Send("a", 2, "a->b", 1),
        Record("a", 1, "s"),
        Receive("b", 1, "a->b", 1),
        Record("b", 1, "s"),
    ]
    kinds = [line.attrib["class"] for line in drawn(Trace(HEADER, lines)).iter(f"{SVG}polyline")]
    assert kinds == ["cut violated"]
    assert [line.attrib["class"] for line in drawn(Trace(HEADER, LINES)).iter(f"{SVG}polyline")] == ["cut", "cut"]


def test_text_of_a_trace_is_never_markup() -> None:
    name = '<script>alert("x")</script>&\x1b[31m\0'
    payload = msgspec.Raw(msgspec.json.encode({"event": name, "log_line": 3}))
    view = View(1, ("a<b", "c"), (ChannelSpec("x<&>", "a<b", "c"),))
    trace = Trace(header_of(view), [Internal("a<b", 1, name, payload), Send("a<b", 1, "x<&>", 1)], name)
    page = to_html(trace)
    assert not re.search("<script", page)
    ElementTree.fromstring(to_svg(trace))
    assert "line 3 of the log" in page


def test_a_trace_with_too_many_events_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(drawing, "EVENTS_MAX", 5)
    with pytest.raises(UsageError, match="at most 5"):
        to_svg(Trace(HEADER, LINES))
