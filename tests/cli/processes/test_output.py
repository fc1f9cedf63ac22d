"""Output to a terminal, a pipe and a full disk."""

import io
import resource
import subprocess
import sys
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from pathlib import Path

import pytest
from tests.cli.command_line import simulated_store

from strobe.cli.shell.output import Column, ProgressLine, print_error, print_table, print_wrapped


class Terminal(io.StringIO):
    """A stream that claims to be a terminal; `terminal` makes it 40 columns wide."""

    def isatty(self):
        return True


@contextmanager
def terminal():
    """Make stdout and stderr one narrow terminal."""
    screen = Terminal()
    with pytest.MonkeyPatch.context() as patch, redirect_stdout(screen), redirect_stderr(screen):
        patch.setenv("COLUMNS", "40")
        patch.setenv("TERM", "xterm-256color")
        patch.delenv("NO_COLOR", raising=False)
        yield screen


def test_progress_is_one_line_that_is_cleared_at_the_end():
    with terminal() as screen, ProgressLine() as progress:
        progress.show("half way", now=True)
        progress.show("x" * 80, now=True)
    assert screen.getvalue() == f"\r\x1b[Khalf way\r\x1b[K{'x' * 39}\r\x1b[K"


def test_whatever_is_printed_replaces_the_progress_line():
    with terminal() as screen, ProgressLine() as progress:
        progress.show("half way", now=True)
        print_wrapped("done")
        with progress.ticking("waiting"):
            progress.show("again", now=True)
        print_table([Column("a")], [["b"]])
    assert screen.getvalue().startswith("\r\x1b[Khalf way\r\x1b[Kdone\n\r\x1b[Kagain")
    assert "\r\x1b[K\x1b[1ma" in screen.getvalue()  # the bold title of the table begins its own line


def test_progress_is_not_printed_to_a_file(capsys):
    with ProgressLine() as progress, progress.ticking("waiting"):
        progress.show("half way", now=True)
    assert capsys.readouterr() == ("", "")


def test_an_error_is_wrapped_but_names_lines_and_commands_stay_whole():
    with terminal() as screen:
        print_error(
            "the file is wrong in several-hyphenated-places-at-once; run:\n    strobe simulate bank.py:bank --seed 1"
        )
    assert screen.getvalue().splitlines() == [
        "error: the file is wrong in",
        "  several-hyphenated-places-at-once;",
        "  run:",
        "    strobe simulate bank.py:bank --seed 1",
    ]


def test_a_line_is_wrapped_on_a_terminal_only(capsys):
    text = "one two three four five six seven eight nine ten"
    with terminal() as screen:
        print_wrapped(text)
    assert screen.getvalue() == "one two three four five six seven eight\n  nine ten\n"
    print_wrapped(text)
    assert capsys.readouterr().out == f"{text}\n"


def test_a_table_wraps_text_and_never_cuts_a_name():
    columns = [Column("snapshot", name=True), Column("ms", number=True), Column("reason")]
    with terminal() as screen:
        print_table(columns, [["000001-00000001-coordinator", "12.5", "timed out after 0.4 s without d"]])
    assert "000001-00000001-coordinator  12.5  timed out after" in screen.getvalue()
    assert len(screen.getvalue().splitlines()) > 2


def test_verdicts_are_coloured_on_a_terminal_only(capsys):
    with terminal() as screen:
        print_table([Column("verdict", name=True)], [["violated"]])
    assert "\x1b[1;31mviolated" in screen.getvalue()
    print_table([Column("verdict", name=True)], [["violated"]])
    assert capsys.readouterr().out == "verdict\nviolated\n"


@pytest.mark.parametrize("options", [(), ("--json",)])
def test_output_on_a_full_disk_is_an_error_not_a_bug(tmp_path, options):
    store = simulated_store(tmp_path)
    command = [sys.executable, "-m", "strobe", "snapshot", "list", "--store", str(store), *options]
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert done.returncode == 3
    assert "cannot write to standard output" in done.stderr
    assert "bug" not in done.stderr


@pytest.mark.parametrize("words", [["--help"], ["snapshot", "--help"], ["up", "--help"], ["--version"], []])
def test_help_on_a_full_disk_is_an_error_not_a_bug(words):
    with Path("/dev/full").open("w") as full:
        command = [sys.executable, "-m", "strobe", *words]
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert done.returncode == 3
    assert done.stderr.startswith("error: cannot write to standard output")


@pytest.mark.parametrize("limited", [False, True], ids=["full-disk", "size-limit"])
def test_the_exit_code_does_not_depend_on_the_disk_of_stderr(tmp_path, limited):
    """Supervisors depend on the code: a replaced coordinator must end with 5 even if it cannot print why."""

    def limit():
        resource.setrlimit(resource.RLIMIT_FSIZE, (0, resource.RLIM_INFINITY))

    command = [sys.executable, "-m", "strobe", "snapshot", "list", "--store", str(tmp_path / "absent")]
    with (tmp_path / "errors" if limited else Path("/dev/full")).open("w") as file:
        done = subprocess.run(command, stdout=file, stderr=file, check=False, preexec_fn=limit if limited else None)
    assert done.returncode == 2
