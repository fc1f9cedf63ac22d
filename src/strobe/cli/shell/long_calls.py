"""Notes on stderr about a function of the user that does not return, for commands that run it in their own thread."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import get_ident

from strobe import watchdog
from strobe.cli.shell.output import note, note_lines
from strobe.watchdog import LOOK_S, CallWatch, Watchdog, innermost_frame


@contextmanager
def long_calls_noted(
    say: Callable[[str], None] | None = None,
    whose: Callable[[object], str] = lambda owner: "",
    way_out: str = "Ctrl-C ends the command",
) -> Iterator[None]:
    """Name a call of the user's code in this thread that has been running for 5 s, 10 s, ..., with its stack.

    `say` prints a line (default: `note`). `whose` returns the name of the process that is this object, if there is one.
    """
    blocked_s, thread = watchdog.BLOCKED_S, get_ident()
    watch = CallWatch(blocked_s)

    def look(elapsed_s: float) -> None:
        found = watch.look(innermost_frame(thread), elapsed_s)
        if found is None:
            return
        print_note = say or note
        call = found.call.describe(whose(found.call.owner))
        if found.ended:
            print_note(f"{call} has ended, after {found.running_s:.1f} s")
        else:
            print_note(f"{call} has been running for {found.running_s:.1f} s; {way_out}")
            note_lines(found.call.stack)

    with Watchdog(look, min(LOOK_S, blocked_s / 4)):
        yield
