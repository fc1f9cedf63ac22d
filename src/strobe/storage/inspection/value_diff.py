"""Compares two decoded values field by field: added, removed and changed fields."""

from collections.abc import Iterator
from typing import Any

import msgspec

ADDED, REMOVED, CHANGED = "added", "removed", "changed"


class FieldChange(msgspec.Struct, frozen=True, omit_defaults=True):
    """A field that differs. `path` is its path within the whole value, empty for the whole value."""

    path: str
    change: str
    before: Any = None
    after: Any = None


def changed_fields(before: Any, after: Any, path: str = "") -> Iterator[FieldChange]:
    """Yield the innermost fields in which two decoded values differ, in the order of the first."""
    if isinstance(before, dict) and isinstance(after, dict):
        yield from _maps(before, after, path)
    elif isinstance(before, list) and isinstance(after, list):
        yield from _lists(before, after, path)
    elif not _same(before, after):
        yield FieldChange(path, CHANGED, before, after)


def _maps(before: dict[Any, Any], after: dict[Any, Any], path: str) -> Iterator[FieldChange]:
    for key in dict.fromkeys((*before, *after)):
        place = f"{path}.{key}" if path else str(key)
        if key not in after:
            yield FieldChange(place, REMOVED, before=before[key])
        elif key not in before:
            yield FieldChange(place, ADDED, after=after[key])
        else:
            yield from changed_fields(before[key], after[key], place)


def _lists(before: list[Any], after: list[Any], path: str) -> Iterator[FieldChange]:
    for place, (one, other) in enumerate(zip(before, after, strict=False)):
        yield from changed_fields(one, other, f"{path}[{place}]")
    for place in range(len(after), len(before)):
        yield FieldChange(f"{path}[{place}]", REMOVED, before=before[place])
    for place in range(len(before), len(after)):
        yield FieldChange(f"{path}[{place}]", ADDED, after=after[place])


def _same(before: Any, after: Any) -> bool:
    # In Python, True == 1 and NaN != NaN. Here True and 1 differ, and NaN equals NaN.
    return type(before) is type(after) and (before == after or (before != before and after != after))
