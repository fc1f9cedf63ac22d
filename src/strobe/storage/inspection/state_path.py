"""Finds one value in a recorded state by its path: `b[140525]`, `b["ada"].balance`, `b.account.history[0]`.

A path is the name of a process, then `.field` or `[key]` for each step. `[140525]` is an integer or a string, whichever
exists; quotes make it a string, `b"..."` bytes, and a plus sign an integer. No other state is read from the store.
"""

import ast
import re
from collections.abc import Iterable, Iterator, Sequence
from difflib import get_close_matches
from heapq import nlargest, nsmallest
from typing import Any

import msgspec

from strobe.errors import UNREADABLE, SnapshotCorrupt, StoreCorrupt, UsageError
from strobe.keyed_state import Key, merged_entries
from strobe.protocol.values.fragment import KEYED, MSGPACK
from strobe.protocol.values.log_entries import ProcessRecord
from strobe.storage.store.store import Store

NEAR_MAX = 3
_SIMILAR_AMONG_MAX = 10_000
"""Misspelled keys are looked for among at most so many; comparing texts is slow."""

_STEP = re.compile(r"""\.([^.\[\]]+)|\[(b?"(?:[^"\\]|\\.)*"|b?'(?:[^'\\]|\\.)*')\]|\[([^\]"']+)\]""")
_INTEGER = re.compile(r"[+-]?[0-9]{1,20}")
_EXAMPLES = 'a path looks like b[140525], b["ada"].balance or b.account.history[0]'

Step = tuple[Key, ...]
"""What one step may mean: one key, or an integer and the string of the same digits."""


class FoundValue(msgspec.Struct, frozen=True):
    """A value, with the id of its snapshot. `path` is as it was given, `keys` are the steps that were taken."""

    id: str
    path: str
    process: str
    keys: tuple[Key, ...]
    value: Any


def find_value(store: Store, name: str, path: str) -> FoundValue:
    """Return the value at `path` in the snapshot `name`; raise UsageError if there is none."""
    identity = store.resolve(name)
    processes = store.known.committed[identity].manifest.processes
    process, steps = parse_path(path, processes)
    try:
        keys, value = _look_up(store, process, processes[process], steps)
    except StoreCorrupt as error:
        store.resolve(identity)  # a snapshot that was removed meanwhile is not damaged
        raise SnapshotCorrupt(identity, error.problem) from error
    except (*UNREADABLE, ValueError) as error:
        raise SnapshotCorrupt(identity, f"the state of process {process} cannot be read: {error}") from error
    return FoundValue(identity, path, process, keys, value)


def parse_path(path: str, processes: Iterable[str]) -> tuple[str, list[Step]]:
    """Return the process and the steps of a path; a process may have a dot or a bracket in its name."""
    begins = [name for name in processes if path == name or path.startswith((f"{name}.", f"{name}["))]
    if not begins:
        raise UsageError(f"{path!r} begins with no process of the snapshot, which has {', '.join(processes)}")
    process = max(begins, key=len)
    rest, steps = path[len(process) :], list[Step]()
    while rest:
        match = _STEP.match(rest)
        if match is None:
            raise UsageError(f"{path!r} cannot be read from {rest!r} on; {_EXAMPLES}")
        steps.append(_step(*match.groups()))
        rest = rest[match.end() :]
    return process, steps


def _step(field: str | None, quoted: str | None, plain: str | None) -> Step:
    if quoted is not None:
        try:
            return (ast.literal_eval(quoted),)
        except (SyntaxError, ValueError) as error:
            raise UsageError(f"{quoted} is not a text in quotes: {error}") from error
    text = field or plain or ""
    if not _INTEGER.fullmatch(text):
        return (text,)
    return (int(text),) if text.startswith("+") else (int(text), text)


def _look_up(
    store: Store, process: str, record: ProcessRecord, steps: Sequence[Step]
) -> tuple[tuple[Key, ...], object]:
    taken: list[Key] = []
    if record.encoding == KEYED:
        if not steps:
            raise UsageError(f"the state of {process} has one value for each key: name a key, as in {process}[KEY]")
        key, value = _entry(process, [store.read_blob(ref) for ref in (record.state, *record.deltas)], steps[0])
        taken, steps = [key], steps[1:]
    elif record.encoding == MSGPACK:
        value = msgspec.msgpack.decode(store.read_blob(record.state))
    else:
        value = bytes(store.read_blob(record.state))
    for step in steps:
        key, value = _member(f"{process}{_printed(taken)}", value, step)
        taken.append(key)
    return tuple(taken), value


def _entry(process: str, segments: Sequence[memoryview], step: tuple[Any, ...]) -> tuple[Key, object]:
    """Return the entry of a keyed state."""
    found = {key: value for key, value in merged_entries(segments) if key in step}
    if len(found) > 1:
        number, text = step
        both = f"{process} has the key {text!s} both as an integer and as a string"
        raise UsageError(f'{both}; write ["{text!s}"] for the string, [{number:+}] for the integer')
    for key, value in found.items():
        return key, msgspec.msgpack.decode(value)
    near = ", ".join(f"[{key!r}]" for key in _near([key for key, _ in merged_entries(segments)], step))
    raise UsageError(f"{process} has no key {step[0]!r}; {f'near it are {near}' if near else 'it has no keys'}")


def _member(place: str, value: object, step: Step) -> tuple[Key, object]:
    """Return a field of a struct, a value of a map or an element of a list."""
    if isinstance(value, dict):
        for key in step:
            if key in value:
                return key, value[key]
        near = ", ".join(map(str, _near(list(value), step)))
        raise UsageError(f"{place} has no field {step[0]!r}; {f'near it are {near}' if near else 'it is empty'}")
    if isinstance(value, list):
        index = step[0]
        if isinstance(index, int) and -len(value) <= index < len(value):
            return index, value[index]
        raise UsageError(f"{place} is a list of {len(value)} elements, without {step[0]!r}")
    raise UsageError(f"{place} is {_kind(value)}, and has nothing inside: {step[0]!r} cannot be found in it")


def _kind(value: object) -> str:
    return "nothing" if value is None else f"of type {type(value).__name__}"


def _printed(taken: Sequence[Key]) -> str:
    return "".join(f"[{key!r}]" for key in taken)


def _near(keys: list[Any], step: tuple[Any, ...]) -> Iterator[Key]:
    """Yield some of `keys` that the step may have meant: near integers, similar texts, neighbours in order."""
    if len(keys) <= NEAR_MAX:
        yield from keys
        return
    wanted = step[0]
    same = [key for key in keys if type(key) is type(wanted)]
    if not same:
        yield from nsmallest(NEAR_MAX, keys, key=str)
    elif isinstance(wanted, int):
        yield from nsmallest(NEAR_MAX, same, key=lambda key: (abs(key - wanted), key))
    else:
        compared = isinstance(wanted, str) and len(same) <= _SIMILAR_AMONG_MAX
        similar = get_close_matches(wanted, same, NEAR_MAX) if compared else []
        before, after = (key for key in same if key < wanted), (key for key in same if key > wanted)
        yield from similar or (*nlargest(1, before), *nsmallest(NEAR_MAX - 1, after))
