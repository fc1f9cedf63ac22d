"""Names of snapshots as users type them (`latest`, `1.7`, an id, the beginning of one) and as tables print them."""

from collections.abc import Callable, Iterable, Iterator
from itertools import chain

from strobe.errors import SnapshotError, SnapshotIncomplete, SnapshotNotFound
from strobe.protocol.values.ids import full_prefix, number_prefix, short_names
from strobe.storage.entries.log_state import LogState

LATEST = "latest"
Printed = Callable[[str], str]
"""Returns an id as tables print it."""
_SHOWN_MAX = 5


def resolve(state: LogState, name: str) -> str:
    """Return the id of the complete snapshot named `name`; otherwise raise an error that lists the existing ones."""
    if name == LATEST:
        if state.newest_complete is None:
            raise SnapshotNotFound(name, _existing(state))
        return state.newest_complete
    if name in state.committed:
        return name
    prefix = full_prefix(name)
    matches = [snapshot for snapshot in state.committed if snapshot.startswith(prefix)] if name else []
    if len(matches) == 1:
        return matches[0]
    if matches and prefix != name:
        raise SnapshotNotFound(
            name, f"{len(matches)} snapshots have this number ({_some(matches)}); type the whole id of the one you mean"
        )
    if matches:
        raise SnapshotNotFound(name, f"{len(matches)} ids begin so ({_some(matches)}); type more of the one you mean")
    raise _explain(state, name if prefix == name else next(_incomplete(state, prefix), name))


def printed_names(state: LogState, incomplete: Iterable[str] = ()) -> Printed:
    """Return a function that shortens the id of a complete snapshot, or of one of these `incomplete` ones, to `1.7`.

    An id stays as it is if the short form would mean another snapshot as well.
    """
    complete = short_names(state.committed)
    others = {snapshot for number in {*map(number_prefix, incomplete)} for snapshot in _incomplete(state, number)}
    either = short_names((*state.committed, *others))
    return lambda snapshot: (complete if snapshot in state.committed else either)(snapshot)


def _incomplete(state: LogState, prefix: str) -> Iterator[str]:
    """Yield the open, aborted and removed snapshots of this number."""
    opened = (snapshot for snapshot in state.open if snapshot.startswith(prefix))
    return chain(opened, state.aborted.numbered(prefix), state.removed.numbered(prefix))


def _explain(state: LogState, name: str) -> SnapshotError:
    if name in state.open:
        begun = state.open[name].position
        return SnapshotIncomplete(name, f"has begun (log entry {begun}) and has no outcome yet; {_existing(state)}")
    if name in state.aborted:
        return SnapshotIncomplete(name, f"was aborted: {state.aborted[name]}; {_existing(state)}")
    if name in state.removed:
        return SnapshotNotFound(name, f"was removed: {state.removed[name]}; {_existing(state)}")
    return SnapshotNotFound(name, f"there is no such snapshot; {_existing(state)}")


def _existing(state: LogState) -> str:
    if not state.committed:
        return "the store has no complete snapshot yet; take one with `strobe snapshot take`"
    return f"complete ones are: {_some(list(state.committed))}"


def _some(snapshots: list[str]) -> str:
    newest = ", ".join(snapshots[-_SHOWN_MAX:])
    return newest if len(snapshots) <= _SHOWN_MAX else f"{newest} and {len(snapshots) - _SHOWN_MAX} older"
