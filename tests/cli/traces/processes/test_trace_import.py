"""`strobe trace import` and `export`: logs with vector clocks, and diagrams."""

import pytest
from tests.cli.command_line import refused, run
from tests.traces.test_clock_logs import LOG

from strobe.cli.traces.trace_import import _SearchProgress
from strobe.errors import UsageError


@pytest.fixture
def log(tmp_path):
    file = tmp_path / "my.log"
    file.write_text(LOG)
    return file


def test_a_log_becomes_a_trace_that_can_be_queried(log, tmp_path):
    trace = tmp_path / "run.jsonl"
    result = run("trace", "import", log, "--out", trace)
    assert (result.code, "3 events of 2 processes, 2 messages: the clocks hold" in result.out) == (0, True)
    assert run("trace", "verify", trace).code == 0
    assert run("trace", "lattice", trace, "--count").out == "4 consistent cuts\n"
    assert run("trace", "lattice", trace, "--possibly", 'a.event == "ask" and events(b) == 1').code == 0


def test_several_executions_become_several_traces(log, tmp_path):
    log.write_text(f"=== one ===\n{LOG}=== two ===\n{LOG}")
    words = ("trace", "import", log, "--delimiter", "^=== (?<trace>.*) ===$", "--out", tmp_path / "run.jsonl")
    rows = run(*words, "--json").document["executions"]
    assert [row["execution"] for row in rows] == ["one", "two"]
    assert all((tmp_path / f"run-{number}.jsonl").exists() for number in (1, 2))
    (row,) = run(*words, "--execution", "two", "--json").document["executions"]
    assert row["file"] == str(tmp_path / "run.jsonl")
    refused(run(*words, "--execution", "three"), "there is no execution 'three'; there are: 'one', 'two'")


def test_impossible_clocks_of_all_executions_are_refused_at_once(log):
    broken = LOG.replace('"a":2, "b":1', '"a":3')
    log.write_text(f"=== one ===\n{broken}=== two ===\n{broken}")
    result = run("trace", "import", log, "--delimiter", "^=== (?<trace>.*) ===$")
    refused(result, "2 problems", "line 7: a: it is event 3 of its host", "line 14: a:")


def test_a_host_may_have_another_name_in_the_trace(log, tmp_path):
    """No process may have the coordinator's name."""
    log.write_text(LOG.replace("b {", "coordinator {").replace('"b"', '"coordinator"'))
    refused(run("trace", "import", log), "may not be called 'coordinator'", "--rename OLD=NEW")
    words = ("trace", "import", log, "--out", tmp_path / "run.jsonl", "--json", "--rename", "coordinator=b")
    (row,) = run(*words).document["executions"]
    assert row["processes"] == ["a", "b"]
    assert "coordinator" not in (tmp_path / "run.jsonl").read_text()
    assert run("trace", "verify", tmp_path / "run.jsonl").code == 0
    log.write_text('begin\nx=1 {"x=1":1}\n')
    (row,) = run(*words[:-1], "x=1=x").document["executions"]
    assert row["processes"] == ["x"]


@pytest.mark.parametrize(
    ("renames", "problem"),
    [
        (["a=b"], "my.log: two hosts would be called 'b': 'a' and 'b'"),
        (["a=x", "b=x"], "two hosts would be called 'x'"),
        (["c=x"], "--rename c=x: my.log has no host 'c'; its hosts are: 'a', 'b'"),
        (["a=x", "a=y"], "--rename a=y: 'a' is already renamed to 'x'"),
        (["a"], "--rename a: not of the form OLD=NEW"),
        (["a="], "--rename a=: not of the form OLD=NEW"),
    ],
)
def test_an_invalid_renaming_is_refused(log, monkeypatch, renames, problem):
    monkeypatch.chdir(log.parent)
    refused(run("trace", "import", "my.log", *(word for each in renames for word in ("--rename", each))), problem)


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        (["--parser", "(?<host>"], "not a regular expression"),
        (["--parser", "(?<host>.*)"], "no group (?<clock>...), (?<event>...)"),
        (["--out", "/nowhere/run.jsonl"], "cannot write"),
    ],
)
def test_an_invalid_option_is_refused(log, options, problem):
    refused(run("trace", "import", log, *options), problem)


def test_a_log_that_cannot_be_read_is_refused(tmp_path):
    refused(run("trace", "import", tmp_path / "none.log"), "cannot read")
    (tmp_path / "bytes.log").write_bytes(b"one\ntwo \xff\n")
    refused(run("trace", "import", tmp_path / "bytes.log"), "line 2: not UTF-8")


def test_a_regular_expression_that_would_never_end_is_stopped(log, monkeypatch):
    monkeypatch.setattr("strobe.cli.traces.trace_import._MATCHING_S_MAX", 0.1)
    log.write_text("a" * 60 + "!\n")
    parser = r"(a+)+$(?<host>\S*) (?<clock>{.*})\n(?<event>.*)"
    refused(
        run("trace", "import", log, "--parser", parser), "my.log, from line 1 on: ", "exponentially many ways to fail"
    )


def test_lines_without_events_may_be_long(log):
    log.write_text("x" * 300_000 + "\n" + LOG + "y" * 300_000 + "\n" + "z " * 100_000 + "\n")
    assert run("trace", "import", log).out.startswith("3 events of 2 processes")


def test_a_line_that_is_too_long_for_the_default_is_named():
    progress = _SearchProgress("my.log", by_default=True)
    progress(6)
    progress.check()
    progress(6)
    progress.check()
    with pytest.raises(UsageError, match=r"my\.log, from line 6 on: .*: a line there is too long for a log"):
        progress.check()


def test_an_exported_log_equals_the_imported_one(log, tmp_path):
    run("trace", "import", log, "--out", tmp_path / "run.jsonl")
    assert run("trace", "export", tmp_path / "run.jsonl", "--out", tmp_path / "again.log").code == 0
    assert (tmp_path / "again.log").read_text() == LOG.replace('{"b":1, "a":1}', '{"a":1,"b":1}').replace(", ", ",")


@pytest.mark.parametrize("form", ["svg", "html"])
def test_a_trace_is_exported_as_a_diagram(log, tmp_path, form):
    run("trace", "import", log, "--out", tmp_path / "run.jsonl")
    assert run("trace", "export", tmp_path / "run.jsonl", "--out", tmp_path / f"run.{form}").code == 0
    assert (tmp_path / f"run.{form}").read_text().count("<circle") == 3
    assert "hear and answer" in (tmp_path / f"run.{form}").read_text()


def test_an_unknown_format_is_refused(log, tmp_path):
    run("trace", "import", log, "--out", tmp_path / "run.jsonl")
    refused(run("trace", "export", tmp_path / "run.jsonl", "--out", tmp_path / "run.pdf"), "unknown format")
