"""Names and reasons from other programs are printed to a terminal as plain text only (E14)."""

import io
import json
import re
from types import UnionType
from typing import get_args, get_origin, get_type_hints
from xml.etree import ElementTree

import msgspec
import pytest
from prometheus_client.core import GaugeMetricFamily
from tests.cli.processes.test_output import terminal
from tests.support.hostile_text import HOSTILE, LONG, NOT_PLAIN, all_plain

from strobe.causality.trace import Trace
from strobe.causality.trace_lines import Internal, header_of
from strobe.cli import app
from strobe.cli.live.up_display import UpDisplay
from strobe.cli.shell import output
from strobe.cli.shell.output import (
    Column,
    ProgressLine,
    cell_of,
    note,
    print_error,
    print_json,
    print_line,
    print_table,
    print_wrapped,
)
from strobe.cli.simulation.explain import page
from strobe.protocol.values.view import View
from strobe.runtime.api.metrics import _with_plain_labels
from strobe.runtime.messages.api_documents import Status
from strobe.simulation.explain.explanations import Scene
from strobe.spark.pipeline.alerts import Alert, AlertHooks
from strobe.traces.drawing import to_html, to_svg

CORPUS = [*HOSTILE.values(), "\n".join(HOSTILE.values())]
ANSI_OF_OURS = r"\x1b\[[0-9;]*[mKhlJAG]|\r"


def shown_on(screen):
    """The text on the terminal, without the colours and cursor movements of Strobe's own tables and progress."""
    return re.sub(ANSI_OF_OURS, "", screen.getvalue())


PRINTERS = {
    "print_line": print_line,
    "print_wrapped": print_wrapped,
    "note": note,
    "print_error": lambda text: print_error(text.replace("\n", " ")),
    "print_json": lambda text: print_json({text: [text]}),
    "print_table": lambda text: print_table([Column("a", name=True), Column("b")], [[text, text], ["b", text]]),
    "progress note": lambda text: ProgressLine().note(text),
    "progress": lambda text: ProgressLine().show(text, now=True),
}


@pytest.mark.parametrize("printer", PRINTERS)
def test_printed_text_cannot_control_the_terminal(printer, capsys):
    for text in CORPUS:
        PRINTERS[printer](text)
        with terminal() as screen:
            PRINTERS[printer](text)
        assert NOT_PLAIN.search(shown_on(screen).replace("\n", "")) is None, text
    out, err = capsys.readouterr()
    assert all_plain(out + err)


@pytest.mark.parametrize("printer", ["print_line", "note"])
def test_a_line_stays_one_line(printer, capsys):
    PRINTERS[printer](HOSTILE["newline"])
    out, err = capsys.readouterr()
    assert len((out + err).splitlines()) == 1


def test_brackets_in_a_name_are_no_markup(capsys):
    print_table([Column("process", name=True)], [["[red]a[/red]"], ["[/]"], ["[link=http://x]y[/link]"]])
    assert capsys.readouterr().out.split("\n")[1:4] == ["[red]a[/red]", "[/]", "[link=http://x]y[/link]"]
    assert cell_of("[bold]x").plain == "[bold]x"


def test_an_error_keeps_its_lines_and_loses_its_control_characters(capsys):
    print_error("the peer sent \x1b[2J; run:\n    strobe up\r\x1b]0;x\x07")
    assert capsys.readouterr().err == "error: the peer sent \\x1b[2J; run:\n    strobe up\\r\\x1b]0;x\\x07\n"


def test_long_text_is_cut_wherever_it_is_printed(capsys):
    for printer in (print_line, note, print_error):
        printer(LONG)
        out, err = capsys.readouterr()
        assert len(out + err) < 11_000
        assert "more characters" in out + err


def test_the_traceback_of_a_bug_is_plain_text(monkeypatch, capsys):
    def fail(words):
        raise KeyError(HOSTILE["title"] + HOSTILE["newline"])

    monkeypatch.setattr(app, "_invoke", fail)
    assert app.run([]) == app.EXIT_BUG
    assert all_plain(capsys.readouterr().err)


def test_a_stream_with_fewer_characters_gets_escapes(capsys, monkeypatch):
    raw = io.BytesIO()
    monkeypatch.setattr(output.sys, "stdout", io.TextIOWrapper(raw, encoding="ascii"))
    print_line("a → b")
    output.sys.stdout.flush()
    assert raw.getvalue() == b"a \\u2192 b\n"


def filled(kind, text):
    """A value of `kind` with `text` in every string field, and one element in every collection."""
    origin, inner = get_origin(kind), get_args(kind)
    if origin in (list, tuple):
        return origin([filled(inner[0], text)])
    if origin is dict:
        return {text: filled(inner[1], text)}
    if origin is UnionType:
        return filled(inner[0], text)
    if issubclass(kind, msgspec.Struct):
        return kind(**{name: filled(part, text) for name, part in get_type_hints(kind).items()})
    return text if kind is str else kind(1)


@pytest.mark.parametrize("kind", HOSTILE)
def test_the_table_of_up_shows_names_and_reasons_as_text(kind, capsys):
    status = filled(Status, HOSTILE[kind])
    with UpDisplay() as watch:
        watch.show(status)
    assert all_plain("".join(capsys.readouterr()))
    with terminal() as screen, UpDisplay() as watch:
        watch.show(status)
    seen = shown_on(screen).replace("\x1b[?25l", "").replace("\x1b[?25h", "")
    assert NOT_PLAIN.search(seen.replace("\n", "")) is None
    if kind == "markup":
        assert "[red]a[/red]" in "".join(seen.split())


@pytest.mark.parametrize("kind", HOSTILE)
def test_labels_of_metrics_are_plain(kind):
    family = GaugeMetricFamily("a", "b", labels=["process"])
    family.add_metric([HOSTILE[kind]], 1)
    assert all_plain(_with_plain_labels(family.samples[0]).labels["process"])


@pytest.mark.parametrize("kind", sorted(set(HOSTILE) - {"surrogate"}))
def test_drawings_of_a_trace_show_names_as_text(kind):
    text = HOSTILE[kind]
    trace = Trace(header_of(View(1, (text,), ())), [Internal(text, 1, text)], text)
    ElementTree.fromstring(to_svg(trace))
    drawn = to_html(trace)
    assert all_plain(drawn)
    assert "<script" not in drawn


def test_the_page_of_explain_escapes_its_data():
    scenes = [Scene(text, text, (), (), (), True) for name, text in HOSTILE.items() if name != "surrogate"]
    html = page(scenes)
    assert html.count("<script") == page([]).count("<script")
    assert html.count("</script") == page([]).count("</script")


def test_an_alert_is_a_plain_line_with_the_same_content(tmp_path):
    script = tmp_path / "hook.sh"
    script.write_text(f"#!/bin/sh\ncat >> {tmp_path}/alerts\n")
    script.chmod(0o700)
    alert = Alert(
        id="1", store="s", reason="".join(text for name, text in HOSTILE.items() if name != "surrogate"), batch_id=0
    )
    assert AlertHooks((str(script),)).send([alert]) == 0
    sent = (tmp_path / "alerts").read_text()
    assert all_plain(sent)
    assert json.loads(sent)["reason"] == alert.reason
