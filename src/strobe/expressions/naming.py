"""Variables and counts in errors and output: as written in an expression, and what a wrong name was meant to be."""

from collections.abc import Collection
from difflib import get_close_matches
from itertools import islice

from strobe.expressions.nodes import Count, ExpressionError, Variable, count_text

_NAMES_SHOWN_MAX = 12


def name_of(leaf: Variable | Count) -> str:
    """Return a variable or count as written in an expression."""
    if isinstance(leaf, Variable):
        return ".".join(name if name.isidentifier() else f"`{name}`" for name in (leaf.process, *leaf.path))
    return count_text(leaf.kind, leaf.name)


def unknown_name(text: str, leaf: Variable | Count, problem: str, name: str, known: Collection[str]) -> ExpressionError:
    """Return an error that points at `leaf` in `text`, with the closest known name, or the known names."""
    close = get_close_matches(name, known, 1)
    if close:
        meant = count_text(leaf.kind, close[0]) if isinstance(leaf, Count) else repr(close[0])
        return ExpressionError(text, leaf.column, f"{problem}; did you mean {meant}?")
    shown = ", ".join(islice(known, _NAMES_SHOWN_MAX)) + (", ..." if len(known) > _NAMES_SHOWN_MAX else "")
    return ExpressionError(text, leaf.column, f"{problem}; there are: {shown or 'none'}")
