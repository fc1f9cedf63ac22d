"""A coordinator restored from a checkpoint's memory equals one that has read the whole log (E7, S1)."""

import random
from collections.abc import Callable

import msgspec
import pytest
from tests.protocol.coordinator_host import MANIFEST, fields_of

from strobe.protocol import Lifecycle, Policy, SnapshotId, View
from strobe.protocol.coordinator.membership import MembershipMemory
from strobe.protocol.coordinator.memory import Memory, recall, remember, replay_lifecycle
from strobe.protocol.coordinator.messages import EntryLogged, Recovered
from strobe.protocol.values.log_entries import Abort, Begin, Commit, Departure, EpochStart, Pin, Release, ViewChange

NAMES = "pqrs"
NOW_US = 10**9
SEEDS = range(40)
SEEDS_FOR_MUTANTS = range(400)
FIRST = EntryLogged(EpochStart(1, 0, None, View(1, tuple(NAMES), ())))


class LogGenerator:
    """Generates logs of random entries, of which most follow from each other and some would never occur."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.epoch, self.counter, self.view = 1, 0, 1
        self.begun: list[str] = []

    def log(self, length: int) -> list[EntryLogged]:
        makers = (self._begin, self._begin, self._begin, self._commit, self._commit, self._abort, self._change)
        makers += (self._change, self._release, self._pin, self._start_epoch)
        return [FIRST, *(self.random.choice(makers)() for _ in range(length))]

    def _begin(self) -> EntryLogged:
        self.counter += 1
        epoch = self._about(self.epoch)
        self.begun.append(str(SnapshotId(epoch, self._about(self.counter), "coordinator")))
        retries = self.random.choice([None, self._snapshot()])
        view, attempt = self._about(self.view), self.random.randrange(1, 4)
        return EntryLogged(Begin(self.begun[-1], view, "chandy-lamport", ("p",), 1, None, retries, attempt))

    def _commit(self) -> EntryLogged:
        snapshot = self._snapshot()
        manifest = msgspec.structs.replace(
            MANIFEST,
            epoch=SnapshotId.parse(snapshot).epoch,
            view=self._view(self._about(self.view)),
            departed=self._departed(),
            joined=self._joined(),
        )
        return EntryLogged(Commit(snapshot, manifest, 5))

    def _abort(self) -> EntryLogged:
        return EntryLogged(Abort(self._snapshot(), "failed", 6))

    def _change(self) -> EntryLogged:
        self.view += 1
        return EntryLogged(ViewChange(self._view(self._about(self.view)), 7))

    def _release(self) -> EntryLogged:
        return EntryLogged(Release(self.random.choice(NAMES), self._about(self.view), 8))

    def _pin(self) -> EntryLogged:
        return EntryLogged(Pin(self._snapshot(), True, 9))

    def _start_epoch(self) -> EntryLogged:
        self.epoch += 1
        self.view += 1
        restored = self.random.choice([None, self._snapshot()])
        blamed = self.random.choice([None, *NAMES])
        view = self._view(self._about(self.view))
        fork = self.random.random() < 0.3
        entry = EpochStart(self._about(self.epoch), self.random.randrange(NOW_US), restored, view, "", blamed, fork)
        return EntryLogged(entry, self._departed(), self._joined()) if restored else EntryLogged(entry)

    def _about(self, number: int) -> int:
        return max(1, number - self.random.choice([0, 0, 0, 0, 1, 2]))

    def _snapshot(self) -> str:
        return self.random.choice(self.begun[-4:] or [str(SnapshotId(1, 1, "coordinator"))])

    def _view(self, number: int) -> View:
        return View(number, tuple(sorted(self.random.sample(NAMES, self.random.randrange(1, 5)))), ())

    def _departed(self) -> dict[str, Departure]:
        names = self.random.sample(NAMES, self.random.randrange(3))
        return {
            name: Departure({"out": 3}, self.random.random() < 0.5, self._about(self.view), self._about(self.view))
            for name in names
        }

    def _joined(self) -> dict[str, int]:
        return {name: self._about(self.view) for name in self.random.sample(NAMES, self.random.randrange(3))}


def random_log(seed: int) -> list[EntryLogged]:
    return LogGenerator(seed).log(30)


def new_lifecycle(outputs: str) -> Lifecycle:
    return Lifecycle(
        View(1, ("p",), ()), Policy(attempts_max=2), "chandy-lamport", epoch=0, recovering=True, outputs=outputs
    )


def read(lifecycle: Lifecycle, log: list[EntryLogged]) -> Lifecycle:
    for event in log:
        assert lifecycle.handle(event, NOW_US) == [], "nothing is ordered while the log is read back"
    return lifecycle


def stored(memory: Memory) -> Memory:
    return msgspec.json.decode(msgspec.json.encode(memory), type=Memory)


def memories(log: list[EntryLogged], every: int) -> list[Memory]:
    """Return the memory after each entry, each made from the memory `every` entries earlier."""
    found = [stored(remember(replay_lifecycle()))]
    for position in range(1, len(log) + 1):
        lifecycle, base = replay_lifecycle(), max(0, position - every)
        recall(lifecycle, found[base])
        found.append(stored(remember(read(lifecycle, log[base:position]))))
    return found


def check(
    log: list[EntryLogged], outputs: str, every: int, lose: Callable[[Memory], Memory] = lambda kept: kept
) -> None:
    whole = read(new_lifecycle(outputs), log)
    orders = whole.handle(Recovered(), NOW_US)
    for position, memory in enumerate(memories(log, every)):
        lifecycle = new_lifecycle(outputs)
        recall(lifecycle, lose(memory))
        read(lifecycle, log[position:])
        assert lifecycle.handle(Recovered(), NOW_US) == orders, f"orders differ from a checkpoint at {position}"
        assert fields_of(lifecycle) == fields_of(whole), f"the state differs from a checkpoint at {position}"


@pytest.mark.parametrize("outputs", ["", "p", "pq", NAMES])
def test_S1_E7_a_lifecycle_from_a_checkpoint_equals_one_from_the_log(outputs: str) -> None:
    for seed in SEEDS:
        check(random_log(seed), outputs, 1 + seed % 7)


FIELDS = [
    *(name for name in Memory.__struct_fields__ if name != "membered"),
    *(f"membered.{name}" for name in MembershipMemory.__struct_fields__),
]


def without(field: str) -> Callable[[Memory], Memory]:
    """Return a function that resets one field of a memory to its default."""
    _, _, inner = field.partition(".")
    if inner:
        default = getattr(MembershipMemory(), inner)
        return lambda memory: msgspec.structs.replace(
            memory, membered=msgspec.structs.replace(memory.membered, **{inner: default})
        )
    if field == "open":
        return lambda memory: msgspec.structs.replace(memory, open=(), views=())
    if field == "views":
        return lambda memory: msgspec.structs.replace(memory, views=tuple(View(0, (), ()) for _ in memory.views))
    return lambda memory: msgspec.structs.replace(memory, **{field: getattr(Memory(), field)})


@pytest.mark.parametrize("field", FIELDS)
def test_a_memory_that_loses_any_one_field_is_noticed(field: str) -> None:
    """The property above can fail: for each field, some short log shows the difference."""
    found = False
    for seed in SEEDS_FOR_MUTANTS:
        log = random_log(seed)
        try:
            check(log, NAMES[: seed % 3], 1 + seed % 7, without(field))
        except (AssertionError, KeyError):
            found = True
            break
    assert found, f"no log shows whether {field} is remembered"
