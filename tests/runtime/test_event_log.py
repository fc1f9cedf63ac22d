"""The log: one line for each event, whatever its facts contain."""

import io
import json
import logging

import pytest
from tests.support.hostile_text import HOSTILE, LONG, all_plain

from strobe.cli.live.child import Child
from strobe.cli.live.child_log import ChildLog
from strobe.cli.shell.logging_setup import start_logging
from strobe.runtime.event_log import ERROR, EventLog


def lines_of(event: str, *, as_json: bool = False, **facts: object) -> list[str]:
    stream = io.StringIO()
    EventLog(stream, as_json=as_json).emit(event, ERROR, **facts)
    assert stream.getvalue().endswith("\n")
    return stream.getvalue().removesuffix("\n").split("\n")


@pytest.mark.parametrize("as_json", [False, True])
@pytest.mark.parametrize("kind", HOSTILE)
def test_hostile_facts_are_one_plain_line(kind: str, as_json: bool) -> None:
    text = HOSTILE[kind]
    facts = {"reason": text, "names": [text], "by_name": {text: 1}}
    (line,) = lines_of(text, as_json=as_json, **facts)
    assert all_plain(line)


@pytest.mark.parametrize("kind", sorted(set(HOSTILE) - {"surrogate"}))
def test_a_json_line_keeps_the_facts(kind: str) -> None:
    (line,) = lines_of("failed", as_json=True, reason=HOSTILE[kind])
    assert json.loads(line)["reason"] == HOSTILE[kind]


def test_a_fact_cannot_be_mistaken_for_another_fact() -> None:
    (line,) = lines_of("failed", reason='a" process="b')
    assert line.endswith(r'error: failed reason="a\" process=\"b"')


def test_lines_of_a_traceback_cannot_be_mistaken_for_events() -> None:
    lines = lines_of("failed", traceback="Traceback:\n12:00:00.000 error: forged\n\x1b[31m")
    assert [line[:4] for line in lines[1:]] == ["    ", "    "]
    assert all_plain("".join(lines))


@pytest.mark.parametrize("as_json", [False, True])
def test_long_facts_are_cut(as_json: bool) -> None:
    (line,) = lines_of("failed", as_json=as_json, reason=LONG)
    assert len(line) < 11_000
    assert "990,000 more characters" in line


def test_lines_of_the_logging_module_are_plain_too(capsys: pytest.CaptureFixture[str]) -> None:
    logger = logging.getLogger("strobe")
    handlers, level, propagate = logger.handlers, logger.level, logger.propagate
    try:
        start_logging(False, "a\x1b[31m")
        logging.getLogger("strobe.links").warning("refused by %s", HOSTILE["newline"])
    finally:
        logger.handlers, logger.propagate = handlers, propagate
        logger.setLevel(level)
    (line,) = capsys.readouterr().err.splitlines()
    assert all_plain(line)


def test_a_report_with_quotes_is_read_back_from_the_log(tmp_path) -> None:
    report = 'process "b" was blamed 3 times. Its last error: KeyError: "x"'
    (line,) = lines_of("halted", report=report)
    (tmp_path / "c.log").write_text(f"{line}\n")
    log = ChildLog(tmp_path / "c.log", lambda: None)
    log.open()
    assert Child("coordinator", [], [], log).report() == report
    log.close()
