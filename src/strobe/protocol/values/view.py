"""Views: the agreed set of processes and channels (E2), and graph algorithms on them (M1)."""

from collections.abc import Iterable
from functools import cached_property

import msgspec

from strobe.errors import UsageError
from strobe.names import Name, check_name
from strobe.protocol.values.bounds import Count, ViewNumber, Word
from strobe.protocol.values.frames import CHAINS, FIFO, UNORDERED, XXH3, can_hash
from strobe.protocol.values.ids import COORDINATOR


class ChannelSpec(msgspec.Struct, frozen=True, omit_defaults=True):
    """A directed channel of a view. Ordinals count from 1 in each incarnation.

    In stored JSON `hash` is absent if it is xxh3. Every other field is present: msgspec never omits a default that
    comes from a factory.
    """

    id: Name
    source: Word
    target: Word
    kind: Word = msgspec.field(default_factory=lambda: FIFO)
    incarnation: Count = msgspec.field(default_factory=lambda: 1)
    hash: Word = XXH3

    def __post_init__(self) -> None:
        # msgspec omits a default by identity, and an equal string from a file is a different object.
        if self.hash == XXH3:
            msgspec.structs.force_setattr(self, "hash", XXH3)


class View(msgspec.Struct, frozen=True, dict=True):
    """Processes and channels, numbered. Two snapshots of the same view can be compared field by field."""

    number: ViewNumber
    processes: tuple[Name, ...]
    channels: tuple[ChannelSpec, ...]

    def incoming(self, process: str) -> tuple[ChannelSpec, ...]:
        return self._by_target.get(process, ())

    def outgoing(self, process: str) -> tuple[ChannelSpec, ...]:
        return self._by_source.get(process, ())

    # Cached: every process of a view uses these, and there may be many.

    @cached_property
    def members(self) -> frozenset[str]:
        return frozenset(self.processes)

    @cached_property
    def targets(self) -> dict[str, str]:
        """The receiving process of each channel."""
        return {channel.id: channel.target for channel in self.channels}

    @cached_property
    def _by_target(self) -> dict[str, tuple[ChannelSpec, ...]]:
        return _grouped((channel.target, channel) for channel in self.channels)

    @cached_property
    def _by_source(self) -> dict[str, tuple[ChannelSpec, ...]]:
        return _grouped((channel.source, channel) for channel in self.channels)

    def check(self) -> None:
        """Raise UsageError if names clash, or if a channel ends at an unknown process."""
        known = set(self.processes)
        _refuse_duplicates("process", self.processes)
        _refuse_duplicates("channel", [channel.id for channel in self.channels])
        for process in self.processes:
            check_name("process", process)
        if COORDINATOR in known:
            raise UsageError(f"a process may not be called {COORDINATOR!r}: that name is the sequencer's; rename it")
        for channel in self.channels:
            check_name("channel", channel.id)
            for end in (channel.source, channel.target):
                if end not in known:
                    raise UsageError(
                        f"channel {channel.id!r} names the process {end!r}, which does not exist; "
                        f"processes are: {', '.join(sorted(known)) or 'none'}"
                    )
            if channel.kind not in (FIFO, UNORDERED):
                raise UsageError(
                    f"channel {channel.id!r} has the kind {channel.kind!r}; kinds are: {FIFO}, {UNORDERED}"
                )
            check_hash(f"channel {channel.id!r}", channel.hash)
            if not can_hash(channel.kind, channel.hash):
                raise UsageError(
                    f"channel {channel.id!r} is {channel.kind}, and {channel.hash} is for fifo channels: the hash of "
                    f"any other is a sum, which an attacker can forge; make it fifo, or give it hash='{XXH3}'"
                )


def is_next(view: View, before: View) -> bool:
    """Return whether exactly one process joined or left between `before` and `view`, and nothing else changed (E2)."""
    if view.number != before.number + 1 or len(view.members ^ before.members) != 1:
        return False
    stay = view.members & before.members
    return _between(view, stay) == _between(before, stay)


def _between(view: View, processes: frozenset[str]) -> list[ChannelSpec]:
    return [channel for channel in view.channels if channel.source in processes and channel.target in processes]


def _grouped(channels: Iterable[tuple[str, ChannelSpec]]) -> dict[str, tuple[ChannelSpec, ...]]:
    found: dict[str, list[ChannelSpec]] = {}
    for process, channel in channels:
        found.setdefault(process, []).append(channel)
    return {process: tuple(group) for process, group in found.items()}


def check_hash(what: str, name: str) -> None:
    """Raise UsageError if there is no such hash."""
    if name not in CHAINS:
        raise UsageError(f"{what} has the hash {name!r}; hashes are: {', '.join(CHAINS)}")


def _refuse_duplicates(what: str, names: Iterable[str]) -> None:
    seen: set[str] = set()
    for name in names:
        if name in seen:
            raise UsageError(f"two {what}{'es' if what == 'process' else 's'} are called {name!r}; names must differ")
        seen.add(name)


def initiators(view: View, chosen: Iterable[str] = ()) -> tuple[str, ...]:
    """Return the `chosen` processes, and as few more as it takes for markers from them to reach every process (M1).

    With none chosen, that is one process for each strongly connected component that no other component reaches.
    """
    successors: dict[str, list[str]] = {process: [] for process in view.processes}
    for channel in view.channels:
        successors[channel.source].append(channel.target)
    found = list(chosen)
    covered = set(finishing_order(found, successors))
    # In decreasing order of finishing times, the first process not yet reached lies in a source component of the rest.
    for process in reversed(finishing_order(sorted(view.processes), successors)):
        if process not in covered:
            found.append(process)
            finishing_order([process], successors, covered)
    return tuple(found)


def find_cycle(view: View) -> tuple[str, ...]:
    """Return the processes of a cycle, with the first repeated at the end; empty if the channels have no cycle."""
    successors: dict[str, list[str]] = {process: [] for process in view.processes}
    for channel in view.channels:
        successors[channel.source].append(channel.target)
    done: set[str] = set()
    for start in view.processes:
        if start in done:
            continue
        path, branches = {start: 0}, [iter(successors[start])]
        while path:
            following = next(branches[-1], None)
            if following is None:
                done.add(path.popitem()[0])
                branches.pop()
            elif following in path:
                return (*list(path)[path[following] :], following)
            elif following not in done:
                path[following] = len(path)
                branches.append(iter(successors[following]))
    return ()


def finishing_order(starts: Iterable[str], successors: dict[str, list[str]], seen: set[str] | None = None) -> list[str]:
    """Return every process reachable from `starts`, in the order in which a depth-first search finishes them.

    Processes already in `seen` are skipped, with everything behind them. Processes found are added to `seen`.
    """
    seen = set() if seen is None else seen
    finished: list[str] = []
    for start in starts:
        if start in seen:
            continue
        seen.add(start)
        stack = [(start, iter(successors[start]))]
        while stack:
            process, following = stack[-1]
            for successor in following:
                if successor not in seen:
                    seen.add(successor)
                    stack.append((successor, iter(successors[successor])))
                    break
            else:
                finished.append(process)
                stack.pop()
    return finished


def upstream_of(view: View, process: str) -> set[str]:
    """Return the processes from which `process` can be reached along channels, directly or indirectly."""
    sources: dict[str, list[str]] = {}
    for channel in view.channels:
        sources.setdefault(channel.target, []).append(channel.source)
    found: set[str] = set()
    ahead = [process]
    while ahead:
        new = set(sources.get(ahead.pop(), ())) - found
        found |= new
        ahead += new
    return found
