"""The entry point: runs a command, and turns failures into a message and an exit code.

0    all holds                       3    the environment: a missing extra, Java, an unreachable store or peer
1    a violation was found         130    interrupted
2    bad input or usage             70    a bug in Strobe: the traceback is printed
4    undecided (trace lattice)
"""

import os
import sys
import traceback
from collections.abc import Sequence
from typing import Annotated

import typer
from typer.main import get_command

from strobe import __version__
from strobe.cli.shell.commands import LazyGroup, new_app
from strobe.cli.shell.output import (
    flush,
    is_disk_failure,
    is_lost,
    mark_lost,
    note_lines,
    print_error,
    print_json,
    print_line,
    print_lines,
)
from strobe.errors import StrobeError

EXIT_USAGE = 2
EXIT_ENVIRONMENT = 3
EXIT_BUG = 70
EXIT_INTERRUPTED = 130
EXIT_READER_GONE = 141
"""The exit code that a shell reports for a program whose output pipe was closed."""
COMPLETION = "_STROBE_COMPLETE"
"""A shell sets this variable when it asks for the completion of a command line."""
_LIBRARY_WORDS = "Value error, "
"""The option parser puts this before every bad value; it adds nothing."""

app = new_app(completion=True)


def _print_version(wanted: bool) -> None:
    if wanted:
        print_line(f"strobe {__version__}")
        raise typer.Exit


@app.callback(cls=LazyGroup, invoke_without_command=True)
def strobe(
    ctx: typer.Context,
    version: Annotated[  # noqa: ARG001 -- its callback handles it
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Take consistent snapshots of a running distributed system: every process and every message in flight, each
    snapshot with its proof.

    \b
    Start with:
      strobe demo
    """
    if ctx.invoked_subcommand is None:
        print_lines(ctx.get_help())


def run(arguments: Sequence[str] | None = None) -> int:
    """Run one command line and return its exit code."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    try:
        code = _run(words)
        flush(sys.stdout)
        if not is_lost(sys.stdout):
            return code
        print_error("cannot write to standard output, and some of it is lost: the disk is full or broken")
        _forget_stdout()
        return code or EXIT_ENVIRONMENT
    except BrokenPipeError:
        _forget_stdout()
        return EXIT_READER_GONE


def _run(words: list[str]) -> int:
    try:
        return _invoke(words)
    except typer.Exit as stop:
        return stop.exit_code
    except (KeyboardInterrupt, typer.Abort):
        print_error("interrupted", label="")
        return EXIT_INTERRUPTED
    except StrobeError as error:
        return _fail(words, error, str(error), error.exit_code)
    except typer.TyperException as error:
        return _fail(words, error, _usage_problem(error), EXIT_USAGE)
    except BrokenPipeError:
        raise
    except OSError as error:
        if is_disk_failure(error) and _printed_by_parser(error):  # the parser prints its help straight to stdout
            mark_lost(sys.stdout)
            return 0
        return _fail_as_bug(words, error)
    except Exception as error:  # noqa: BLE001 -- the last resort: any other exception is a bug, and is shown as one
        return _fail_as_bug(words, error)


def _invoke(words: list[str]) -> int:
    command = get_command(app)
    if COMPLETION in os.environ:
        command.main(words, prog_name="strobe", complete_var=COMPLETION)  # prints the completions, and exits
    with command.make_context("strobe", words) as context:
        code = command.invoke(context)
    return code if isinstance(code, int) else 0


def _printed_by_parser(error: OSError) -> bool:
    """Return whether the option parser was printing."""
    innermost = traceback.extract_tb(error.__traceback__)[-1]
    return innermost.name == "echo" and "typer" in innermost.filename


def _fail_as_bug(words: list[str], error: Exception) -> int:
    note_lines("".join(traceback.format_exception(error)).rstrip())
    summary = f"{type(error).__name__}: {error}".splitlines()[0]
    problem = f"this is a bug in Strobe ({summary}); please report it with the lines above"
    return _fail(words, error, problem, EXIT_BUG)


def _fail(words: list[str], error: Exception, problem: str, exit_code: int) -> int:
    print_error(problem)
    if "--json" in words:
        print_json({"error": {"type": type(error).__name__, "message": problem, "exit_code": exit_code}})
    return exit_code


def _usage_problem(error: typer.TyperException) -> str:
    context = getattr(error, "ctx", None)
    command = context.command_path if context is not None else "strobe"
    problem = _lower(error.format_message()).replace(_LIBRARY_WORDS, "")
    help_text = getattr(getattr(error, "param", None), "help", None)
    if problem.startswith("missing argument ") and help_text:
        problem = f"{problem} ({_lower(help_text)})"
    return f"{problem}{' See' if problem.endswith('?') else '; see'}: {command} --help"


def _lower(sentence: str) -> str:
    """Return a sentence in the form it has inside another one."""
    return f"{sentence[:1].lower()}{sentence[1:]}".rstrip(".")


def _forget_stdout() -> None:
    """Redirect stdout to /dev/null after its reader has closed, as with `| head`: the final flush must not fail."""
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, sys.stdout.fileno())
    os.close(null)
