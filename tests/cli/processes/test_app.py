"""The command line in general: help, exit codes, and what goes to stdout and to stderr."""

import os
import re
import subprocess
import sys

import pytest
import typer
from tests.cli.command_line import BANK, REPOSITORY, refused, run, run_apart

from strobe.cli.shell.commands import COMMANDS, LazyGroup
from strobe.cli.simulation import simulate
from strobe.cli.snapshots import snapshot
from strobe.errors import MissingExtra

COMMAND_LINES = [
    ["demo"],
    ["simulate"],
    ["snapshot", "list"],
    ["snapshot", "show"],
    ["snapshot", "verify"],
    ["snapshot", "diff"],
    ["snapshot", "pin"],
    ["snapshot", "unpin"],
    ["snapshot", "remove"],
    ["snapshot", "collect"],
    ["keys", "create"],
    ["trace", "verify"],
]


def test_help_names_every_command_that_exists():
    result = run("--help")
    assert result.code == 0
    for name in LazyGroup().commands:
        assert f"  {name} " in result.out
        assert COMMANDS[name].purpose.split()[0] in result.out


def test_no_command_at_all_shows_the_help():
    assert run() == run("--help")


def test_help_imports_neither_spark_nor_arrow_nor_the_simulator():
    program = (
        "import sys; from strobe.cli import main; main(['--help']); "
        "sys.exit(', '.join({'pyspark', 'pyarrow', 'numpy', 'rich', 'strobe.simulation'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.stderr.strip() == ""


@pytest.mark.parametrize("words", COMMAND_LINES, ids=" ".join)
def test_the_help_of_every_command_has_a_purpose_and_an_example(words):
    result = run(*words, "--help")
    assert result.code == 0
    assert re.search(r"Examples?:\n    strobe ", result.out)
    assert "--json" in result.out


def test_version():
    assert run("--version").out == "strobe 0.1.0\n"


def test_the_module_is_the_command():
    assert run_apart("--version") == (0, "strobe 0.1.0\n", "")


def test_a_typing_error_gets_a_suggestion():
    result = run("simulat")
    assert result.code == 2
    assert result.error == "error: no such command 'simulat'. Did you mean 'simulate'? See: strobe --help"


def test_a_missing_option_is_named():
    result = run("snapshot", "list")
    assert result.code == 2
    assert result.error == "error: missing option '--store'; see: strobe snapshot list --help"


def raising(error):
    def raise_it(*_, **__):
        raise error

    return raise_it


def test_an_interrupt_ends_with_130_and_no_traceback(monkeypatch):
    monkeypatch.setattr(simulate, "run_all", raising(KeyboardInterrupt()))
    assert run("simulate", BANK) == (130, "", "interrupted\n")


def test_a_missing_extra_ends_with_3(monkeypatch):
    monkeypatch.setattr(snapshot.Store, "open", raising(MissingExtra("spark", "the demo")))
    result = run("snapshot", "list", "--store", "x")
    assert result.code == 3
    assert "strobe-snapshots[spark]" in result.error


def test_a_bug_is_called_one_and_keeps_its_traceback(monkeypatch):
    monkeypatch.setattr(snapshot.Store, "open", raising(KeyError("frontier")))
    result = run("snapshot", "list", "--store", "x", "--json")
    assert result.code == 70
    assert "Traceback" in result.err
    assert "raise_it" in result.err
    assert "this is a bug in Strobe (KeyError: 'frontier')" in result.err
    assert result.document["error"]["exit_code"] == 70


def test_an_aborted_prompt_counts_as_an_interrupt(monkeypatch):
    monkeypatch.setattr(snapshot.Store, "open", raising(typer.Abort()))
    assert run("snapshot", "list", "--store", "x").code == 130


def test_with_json_an_error_is_a_document_too(tmp_path):
    result = run("snapshot", "list", "--store", tmp_path / "nothing", "--json")
    assert result.code == 2
    assert result.document["error"]["type"] == "StoreMissing"
    assert result.document["error"]["exit_code"] == 2
    assert "does not exist" in result.error


def test_the_error_for_a_missing_store_names_how_to_create_one(tmp_path):
    advice = "check the path, or make a store: `strobe up SYSTEM --create`, or Store.create"
    assert run("snapshot", "list", "--store", tmp_path / "nothing").error.endswith(advice)


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (
            ["snapshot", "diff", "latest"],
            "missing argument 'B' (the second snapshot: an id, its short form (1.7: epoch 1, snapshot 7), its "
            "beginning, or latest); see: strobe",
        ),
        (["leave"], "missing argument 'NAME' (the name of the process); see: strobe leave"),
        (["snapshot", "verify", "--level", "bogus"], "invalid value for '--level': 'bogus' is not one of 'exists', "),
    ],
)
def test_mistakes_on_a_command_line_are_reported_in_our_format(words, problem):
    refused(run(*words, "--store", "x"), f"error: {problem}")


def test_a_reader_that_closes_the_pipe_is_no_error():
    command = f"{sys.executable} -m strobe simulate {BANK} --seeds 1 --json; echo $? >&2"
    done = subprocess.run(
        ["bash", "-c", f"({command}) | true"], cwd=REPOSITORY, capture_output=True, text=True, check=False
    )
    lines = done.stderr.splitlines()
    assert lines[-1] == "141"
    assert len(lines) == 2  # the other line has the seed and the faults


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("strobe sna", ["snapshot"]),
        ("strobe snapshot ver", ["verify"]),
        ("strobe simulate --see", ["--seed", "--seeds"]),
    ],
)
def test_a_shell_gets_the_completions_of_a_command_line(line, expected):
    environment = {**os.environ, "_STROBE_COMPLETE": "complete_bash", "COMP_WORDS": line}
    environment["COMP_CWORD"] = str(len(line.split()) - 1)
    done = subprocess.run(
        [sys.executable, "-m", "strobe"], env=environment, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout.split(), done.stderr) == (0, expected, "")


def test_the_completion_script_is_printed_for_a_shell():
    result = run_apart("--show-completion", "bash")
    assert result.code == 0
    assert "complete -o default -F _strobe_completion strobe" in result.out
