"""One of several writers that race, in a process of its own: `python -m tests.storage.racing_writer DIRECTORY NAME`.

Reads one order per line, and answers each with one line:

    append N            append an entry of its own as entry N: "won" or "lost"
    commit ID           append that outcome at the end of the log without checking it: the outcome that counts
    abort ID            the same
    collect TIMES       run the collector this many times: the number of files that it has removed
    append_some COUNT   append this many entries at the end of the log: their number
    pin ID              pin a snapshot unless it is pinned: the position of the entry, or None
    remove ID           remove a snapshot unless it is removed or protected: True or False
    retain LAST         keep this many complete snapshots and collect: the number of removed snapshots
    checkpoint EVERY    write the checkpoint that is due, and collect: its name, or None
"""

import sys

from strobe.errors import LogConflict
from strobe.protocol.values.ids import SnapshotId
from strobe.protocol.values.log_entries import Abort, Begin, Commit, Entry, Pin
from strobe.storage import Store, append_when, collect
from strobe.storage.store import retention


def append(store: Store, name: str, position: int) -> str:
    snapshot = str(SnapshotId(1, position, name))
    try:
        store.append(Begin(snapshot, 1, "chandy-lamport", (name,), at_us=0), position)
    except LogConflict:
        return "lost"
    return "won"


def append_until_accepted(store: Store, entry: Entry) -> str:
    """Append at the end until it succeeds, as a coordinator would that does not check what others decided."""
    while True:
        try:
            store.append(entry, store.state().next_position)
        except LogConflict:
            continue
        return "committed" if entry.snapshot in store.state().committed else "aborted"


def append_some(store: Store, name: str, count: int) -> str:
    for number in range(count):
        snapshot = str(SnapshotId(1, store.state().next_position + number, name))
        append_when(store, lambda state, snapshot=snapshot: Begin(snapshot, 1, "chandy-lamport", (name,), at_us=0))
    return str(count)


def upkeep(store: Store, order: str, argument: str) -> str:
    if order == "pin":
        return str(append_when(store, lambda state: None if argument in state.pinned else Pin(argument, True, 0)))
    if order == "remove":
        return str(retention.remove(store, argument, "by hand", 0))
    planned = retention.plan(store.state(), int(argument), 0, 0, 0)
    return str(len(retention.apply(store, planned).removed))


def checkpoint(url: str, every: int) -> str:
    store = Store.open(url, checkpoint_every=every)
    store.state()
    written = store.write_checkpoint()
    collect(store)
    return str(written)


def execute(store: Store, name: str, order: str, argument: str) -> str:
    if order == "checkpoint":
        return checkpoint(store.url, int(argument))
    if order == "append":
        return append(store, name, int(argument))
    if order == "append_some":
        return append_some(store, name, int(argument))
    if order == "collect":
        return str(sum(len(collect(store).names) for _ in range(int(argument))))
    if order == "abort":
        return append_until_accepted(store, Abort(argument, f"{name} says so", at_us=0))
    if order in ("pin", "remove", "retain"):
        return upkeep(store, order, argument)
    # Any manifest will do: the test is about whose outcome is first.
    _, _, manifest = store.list()[0]
    return append_until_accepted(store, Commit(argument, manifest, at_us=0))


def main(url: str, name: str) -> None:
    store = Store.open_or_create(url)
    for line in sys.stdin:
        sys.stdout.write(execute(store, name, *line.split()) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
