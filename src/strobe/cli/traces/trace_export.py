"""`strobe trace export`: converts a trace to a log of vector clocks, or to a space-time diagram."""

from pathlib import Path
from typing import Annotated

import typer

from strobe.causality.trace import Trace
from strobe.cli.shell.commands import JsonOption
from strobe.cli.shell.output import ProgressLine, print_json, print_line
from strobe.cli.traces.trace_files import PathArgument, SinceOption, read_any
from strobe.errors import UsageError

_FORMATS = {".log": "shiviz", ".svg": "svg", ".html": "html"}


def export(
    path: PathArgument,
    out: Annotated[Path, typer.Option("--out", metavar="FILE", help="FILE.log, FILE.svg or FILE.html.")],
    format_: Annotated[
        str | None,
        typer.Option("--format", metavar="FORMAT", help="shiviz, svg or html, if the name of FILE does not show it."),
    ] = None,
    since: SinceOption = None,
    json: JsonOption = False,
) -> int:
    """Convert a trace: to a log of vector clocks for ShiViz, or to a space-time diagram (SVG or HTML).

    \b
    Example:
      strobe trace export run.jsonl --out run.html
      strobe trace export run.jsonl --out run.log
    """
    kind = format_ or _FORMATS.get(out.suffix)
    if kind not in _FORMATS.values():
        raise UsageError(f"{format_ or out}: unknown format; name the file .log, .svg or .html, or give --format")
    with ProgressLine() as progress:
        progress.show(f"reading {path}", now=True)
        trace, _ = read_any(path, since)
        progress.show(f"writing {out}", now=True)
        text = _text(kind, trace)
        try:
            out.write_text(text, encoding="utf-8")
        except OSError as error:
            raise UsageError(f"cannot write {out}: {error.strerror or error}") from error
    if json:
        print_json({"trace": trace.name, "format": kind, "file": str(out)})
    else:
        print_line(f"written to {out}")
    return 0


def _text(kind: str | None, trace: Trace) -> str:
    from strobe.traces.clock_logs import to_log
    from strobe.traces.drawing import to_html, to_svg

    if kind == "shiviz":
        return "".join(to_log(trace))
    return to_svg(trace) if kind == "svg" else to_html(trace)
