"""Resolves the name of a snapshot typed by a user: `latest`, an id, or the beginning of one."""

from strobe.errors import SnapshotError, SnapshotIncomplete, SnapshotNotFound
from strobe.storage.entries.log_state import LogState

LATEST = "latest"
_SHOWN_MAX = 5


def resolve(state: LogState, name: str) -> str:
    """Return the id of the complete snapshot named `name`; otherwise raise an error that lists the existing ones."""
    if name == LATEST:
        if state.newest_complete is None:
            raise SnapshotNotFound(name, _existing(state))
        return state.newest_complete
    if name in state.committed:
        return name
    matches = [snapshot for snapshot in state.committed if snapshot.startswith(name)] if name else []
    if len(matches) == 1:
        return matches[0]
    if matches:
        raise SnapshotNotFound(name, f"{len(matches)} ids begin so ({_some(matches)}); type more of the one you mean")
    raise _explain(state, name)


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
