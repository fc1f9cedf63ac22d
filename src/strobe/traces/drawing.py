"""Draws a trace as a static space-time diagram: SVG, or an HTML page around it. Time runs down.

An event is one step below the events that it directly depends on, and no lower. So events on one level are concurrent,
and an event connected from above happened later. Recorded cuts are drawn across.
"""

import html

import msgspec

from strobe.causality.cuts import VIOLATED, CutVerdict, check_cuts
from strobe.causality.trace import EventRef, Trace, TracedEvent
from strobe.causality.trace_lines import Receive
from strobe.errors import UsageError
from strobe.plain_text import plain
from strobe.traces.descriptions import describe, log_line

EVENTS_MAX = 20_000

_LANE, _STEP, _TOP, _SIDE, _RADIUS = 170, 28, 56, 90, 5
_NAME_LENGTH_MAX, _LABEL_LENGTH_MAX, _CUT_LENGTH_MAX = 20, 22, 17

_STYLE = """
.lane { stroke: #b8bec8; stroke-width: 1.5 }
.name { font: 600 13px system-ui, sans-serif; text-anchor: middle; fill: #1f2733 }
.label { font: 11px system-ui, sans-serif; fill: #5b6472; paint-order: stroke; stroke: #fff; stroke-width: 3px }
.message { stroke: #7a8aa5; stroke-width: 1.2; fill: none }
.lost { stroke-dasharray: 3 3 }
.event { fill: #2f6fde; stroke: #fff; stroke-width: 1.5 }
.receive { fill: #17806b }
.cut { stroke-width: 1.6; fill: none; stroke-dasharray: 7 4; stroke: #1d9a5b }
.cut.violated { stroke: #d1343f }
.cutname { font: 11px ui-monospace, monospace; fill: #1d9a5b }
.cutname.violated { fill: #d1343f }
"""


def escape(text: str) -> str:
    """Return `text` escaped for XML. Logs may have colour codes, which XML cannot represent."""
    return html.escape(plain(text))


class _Layout(msgspec.Struct, frozen=True):
    """The positions in the diagram: the lane of each process, and the step of each event."""

    lanes: dict[str, int]
    steps: dict[EventRef, int]
    depth: int

    def x(self, process: str) -> int:
        return _SIDE + self.lanes[process] * _LANE

    def y(self, step: float) -> float:
        return _TOP + step * _STEP

    def at(self, ref: EventRef) -> tuple[int, float]:
        return self.x(ref.process), self.y(self.steps[ref])

    @property
    def size(self) -> tuple[int, int]:
        return 2 * _SIDE + (len(self.lanes) - 1) * _LANE + _LANE // 2, _TOP + (self.depth + 2) * _STEP


def to_svg(trace: Trace) -> str:
    """Return the diagram as an SVG document."""
    events = _events(trace)
    layout = _lay_out(trace, events)
    tables = zip(trace.channels, trace.tables.channels, strict=True)
    received = {name: {trace.tables.ordinal[line] for line in table.receives} for name, table in tables}
    width, height = layout.size
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" '
        f'role="img" aria-label="{escape(f"Space-time diagram of {trace.name}")}">',
        f"<style>{_STYLE}</style>",
        '<defs><marker id="head" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" orient="auto">'
        '<path d="M0 0 8 4 0 8z" fill="#7a8aa5"/></marker></defs>',
        f'<rect width="{width}" height="{height}" fill="#fff"/>',
        *(_lane(layout, process) for process in trace.processes),
        *(arrow for event in events for arrow in _arrows(trace, layout, event, received)),
        *(_cut(layout, trace, verdict) for verdict in check_cuts(trace)),
        *(_mark(layout, event) for event in events),
        "</svg>",
    ]
    return "\n".join(parts) + "\n"


def to_html(trace: Trace) -> str:
    """Return a page with the diagram and a legend. It needs no server and runs no script."""
    count = sum(trace.event_count(process) - trace.first_count(process) for process in trace.processes)
    name = escape(trace.name)
    return f"""<!doctype html>
<html lang="en">
<head><meta charset="utf-8"><title>{name}: space-time diagram</title>
<style>
body {{ margin: 0; font: 14px/1.5 system-ui, sans-serif; color: #1f2733; background: #f5f6f8 }}
header {{ padding: 16px 24px }} h1 {{ font-size: 18px; margin: 0 }} p {{ margin: 4px 0; color: #5b6472 }}
main {{ margin: 0 24px 24px; background: #fff; border: 1px solid #dde1e7; border-radius: 8px; overflow: auto }}
i {{ display: inline-block; width: 10px; height: 10px; border-radius: 5px; margin: 0 4px 0 12px }}
</style></head>
<body><header><h1>{name}</h1>
<p>{count:,} events of {len(trace.processes)} processes. Time runs down; what is level may have happened in any order.
Rest the pointer on an event to read it.</p>
<p><i style="background:#2f6fde"></i>event <i style="background:#17806b"></i>event that received
<i style="background:#1d9a5b"></i>consistent cut <i style="background:#d1343f"></i>inconsistent cut;
dashed arrows: not received</p>
</header><main>
{to_svg(trace)}</main></body></html>
"""


def _events(trace: Trace) -> list[TracedEvent]:
    count = sum(trace.event_count(process) - trace.first_count(process) for process in trace.processes)
    if count > EVENTS_MAX:
        raise UsageError(f"{trace.name} has {count:,} events, too many for a diagram, which has at most {EVENTS_MAX:,}")
    return list(map(trace.event, trace.events()))


def _lay_out(trace: Trace, events: list[TracedEvent]) -> _Layout:
    steps: dict[EventRef, int] = {}
    for event in events:
        before = [steps.get(EventRef(event.ref.process, event.ref.position - 1), 0)]
        before += [steps[sender] for _, sender in _senders(trace, event)]
        steps[event.ref] = max(before) + 1
    lanes = {process: lane for lane, process in enumerate(trace.processes)}
    return _Layout(lanes, steps, max(steps.values(), default=0))


def _senders(trace: Trace, event: TracedEvent) -> list[tuple[Receive, EventRef]]:
    """Return the messages that an event received, each with the event that sent it, if that is in the trace."""
    found: list[tuple[Receive, EventRef]] = []
    for line in (event.lead, *event.further):
        if isinstance(line, Receive):
            table = trace.tables.channels[trace.tables.channel_names[line.channel]]
            sending = table.send_of(line.ordinal)
            if sending is not None:
                found.append((line, trace.event_at(sending)))
    return found


def _lane(layout: _Layout, process: str) -> str:
    x, bottom = layout.x(process), layout.y(layout.depth + 1)
    name = escape(_shortened(process, _NAME_LENGTH_MAX))
    return (
        f'<line class="lane" x1="{x}" y1="{_TOP - 12}" x2="{x}" y2="{bottom:g}"/>'
        f'<text class="name" x="{x}" y="{_TOP - 24}">{name}<title>{escape(process)}</title></text>'
    )


def _arrows(trace: Trace, layout: _Layout, event: TracedEvent, received: dict[str, set[int]]) -> list[str]:
    arrows: list[str] = []
    for line, sender in _senders(trace, event):
        arrows.append(_arrow(layout.at(sender), layout.at(event.ref), f"message {line.ordinal} of {line.channel}"))
    for send in event.sends:
        if send.ordinal not in received[send.channel]:
            x, y = layout.at(event.ref)
            side = 1 if layout.x(trace.channels[send.channel].target) >= x else -1
            label = f"message {send.ordinal} of {send.channel}, not received"
            arrows.append(_arrow((x, y), (x + side * _LANE // 3, y + _STEP * 0.7), label, lost=True))
    return arrows


def _arrow(begin: tuple[float, float], end: tuple[float, float], label: str, lost: bool = False) -> str:
    (x1, y1), (x2, y2) = begin, end
    if not lost:  # so that the head touches the circle
        length = max(1.0, ((x2 - x1) ** 2 + (y2 - y1) ** 2) ** 0.5)
        x2, y2 = x2 - (x2 - x1) / length * _RADIUS, y2 - (y2 - y1) / length * _RADIUS
    kind = "message lost" if lost else "message"
    path = f"M{x1:g} {y1:g}L{x2:.1f} {y2:.1f}"
    if x1 == x2 and not lost:  # a message to itself would lie on its lane
        path = f"M{x1:g} {y1:g}C{x1 + 40:g} {y1:g} {x1 + 40:g} {y2:g} {x2:g} {y2:g}"
    return f'<path class="{kind}" marker-end="url(#head)" d="{path}"><title>{escape(label)}</title></path>'


def _mark(layout: _Layout, event: TracedEvent) -> str:
    x, y = layout.at(event.ref)
    text = describe(event)
    kind = "event receive" if isinstance(event.lead, Receive) else "event"
    line = log_line(event)
    title = f"{event.ref}: {text}" + (f" (line {line} of the log)" if line is not None else "")
    label = escape(_shortened(text, _LABEL_LENGTH_MAX))
    return (
        f'<circle class="{kind}" cx="{x}" cy="{y:g}" r="{_RADIUS}"><title>{escape(title)}</title></circle>'
        f'<text class="label" x="{x + 10}" y="{y + 4:g}">{label}<title>{escape(title)}</title></text>'
    )


def _cut(layout: _Layout, trace: Trace, verdict: CutVerdict) -> str:
    """Draw a line across the lanes, below the last event of each process that is in the cut."""
    points = []
    for process in trace.processes:
        if process in verdict.cut:
            last = EventRef(process, verdict.cut[process])
            step = layout.steps.get(last, 0)
            following = layout.steps.get(EventRef(process, last.position + 1), step + 1)
            points.append((layout.x(process), layout.y(step + min(0.5, (following - step) / 2))))
    kind = " violated" if verdict.verdict == VIOLATED else ""
    first, last_point, name = points[0], points[-1], verdict.snapshot_id
    way = [(first[0] - 40, first[1]), *points, (last_point[0] + 40, last_point[1])]
    line = " ".join(f"{x:g},{y:g}" for x, y in way)
    return (
        f'<polyline class="cut{kind}" points="{line}"/>'
        f'<text class="cutname{kind}" x="4" y="{way[0][1] - 4:g}">{escape(_shortened(name, _CUT_LENGTH_MAX))}'
        f"<title>{escape(name)}</title></text>"
    )


def _shortened(text: str, length: int) -> str:
    return text if len(text) <= length else f"{text[: length - 1]}…"
