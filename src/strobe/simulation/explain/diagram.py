"""Space-time diagrams for the terminal: time runs down, each process has a lane. A pure function of the moments."""

from collections.abc import Sequence

from strobe.simulation.explain.stage import Moment

_SYMBOLS = {
    "send": "●",
    "receive": "●",
    "record": "■",
    "marker": "◆",
    "marker-sent": "◇",
    "order": "○",
    "note": "✓",
    "crash": "✗",
}
LEGEND = "● event   ■ state recorded   ◇ marker or barrier sent   ◆ received   ○ order   ✓ complete   ✗ crash"


def draw(processes: Sequence[str], moments: Sequence[Moment], lane: int = 12, width: int = 100) -> list[str]:
    """Return the diagram, a line for each moment, with its rule and its text beside it."""
    places = {process: 4 + number * lane for number, process in enumerate(processes)}
    span = 4 + len(processes) * lane
    lines = [_lanes(places, span, names=True)]
    for number, moment in enumerate(moments, 1):
        cells = _row(places, span, moment)
        cells[:3] = list(f"{number:>2} ")
        lines += _beside(
            "".join(cells), _lanes(places, span), f"{moment.rule:<3} {moment.text}".strip(), moment.rule, span, width
        )
    return lines


def _lanes(places: dict[str, int], span: int, names: bool = False) -> str:
    cells = [" "] * span
    for process, at in places.items():
        cells[at] = process[0] if names else "│"
        if names:
            cells[at : at + len(process)] = list(process)
    return "".join(cells[:span])


def _row(places: dict[str, int], span: int, moment: Moment) -> list[str]:
    cells = list(_lanes(places, span))
    at = places[moment.process]
    cells[at] = _SYMBOLS[moment.kind]
    if moment.kind in ("receive", "marker"):
        _arrow(cells, places[moment.peer], at, moment)
    elif moment.kind in ("send", "marker-sent"):
        _stub(cells, at, places[moment.peer], moment)
    elif moment.label:
        _write(cells, at + 2, moment.label)
    return cells


def _arrow(cells: list[str], source: int, target: int, moment: Moment) -> None:
    """Draw the end of a message's arrow, from its sender's lane to the symbol of its receiver."""
    dash = "─" if moment.kind == "receive" else "┄"
    if source == target:
        _write(cells, target + 1, f"◀{moment.label}")
        return
    step = 1 if target > source else -1
    for place in range(source + step, target, step):
        cells[place] = dash
    cells[target - step] = "▶" if step > 0 else "◀"
    middle = (source + target) // 2 - len(moment.label) // 2
    _write(cells, middle, moment.label)


def _stub(cells: list[str], source: int, target: int, moment: Moment) -> None:
    """Draw the beginning of a message's arrow."""
    dash = "─" if moment.kind == "send" else "┄"
    if target >= source:
        _write(cells, source + 1, f"{dash}{moment.label}{dash}▷")
    else:
        text = f"◁{dash}{moment.label}{dash}"
        _write(cells, source - len(text), text)


def _write(cells: list[str], at: int, text: str) -> None:
    for offset, character in enumerate(text):
        if 0 <= at + offset < len(cells):
            cells[at + offset] = character


def _beside(row: str, empty: str, text: str, rule: str, span: int, width: int) -> list[str]:
    """Put the text to the right of the row, on as many lines as needed."""
    room = max(24, width - span - 2)
    indent = "    " if rule else ""
    lines: list[str] = []
    line = ""
    for word in text.split(" "):
        if line and len(line) + 1 + len(word) > room:
            lines.append(line)
            line = indent + word
        else:
            line = f"{line} {word}" if line else word
    lines.append(line)
    return [f"{row if number == 0 else empty}  {line}".rstrip() for number, line in enumerate(lines)]
