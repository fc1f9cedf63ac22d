"""Which snapshots are comparable: a join begins a generation, a leave does not, a rollback returns to one (E12)."""

from strobe.protocol.values.log_entries import Begin, Commit, Entry, EpochStart, Manifest, Remove, ViewChange
from strobe.protocol.values.view import View
from strobe.runtime.coordinator.generations import Generations
from strobe.storage import LogState


def view(number: int, members: str) -> View:
    return View(number, tuple(members), ())


class History:
    """A log that the test writes, and its generations."""

    def __init__(self, members: str = "ab") -> None:
        self.state = LogState()
        self.generations = Generations()
        self.number = 1
        self.epoch = 0
        self.counter = 0
        self.view = view(1, members)
        self.roll_back(None)

    def append(self, entry: Entry) -> None:
        self.state.apply(self.state.next_position, entry)
        self.generations.follow(self.state)

    def take(self) -> str:
        """Commit one more snapshot, and return its name."""
        self.counter += 1
        name = f"{self.epoch:06d}-{self.counter:08d}-c"
        manifest = Manifest("chandy-lamport", ("a",), self.view, self.epoch, 0, 0, {})
        self.append(Begin(name, self.view.number, "chandy-lamport", ("a",), at_us=0))
        self.append(Commit(name, manifest, at_us=0))
        return name

    def change_view(self, members: str) -> None:
        self.view = view(self.view.number + 1, members)
        self.append(ViewChange(self.view, at_us=0))

    def roll_back(self, snapshot: str | None, members: str | None = None) -> None:
        self.epoch += 1
        if members is not None:
            self.view = view(self.view.number + 1, members)
        self.append(EpochStart(self.epoch, at_us=0, restored=snapshot, view=self.view))

    def generation(self, snapshot: str) -> int:
        return self.generations.of(snapshot)

    def oldest(self, snapshot: str) -> str | None:
        return self.generations.oldest(self.generation(snapshot), self.state)


def test_a_join_begins_a_generation_and_a_leave_does_not() -> None:
    history = History()
    first, second = history.take(), history.take()
    history.change_view("abc")
    joined = history.take()
    history.change_view("ab")
    left = history.take()
    history.change_view("abc")  # it joins again, and brings new state again
    again = history.take()
    assert [history.generation(one) for one in (first, second, joined, left, again)] == [0, 0, 1, 1, 2]
    assert [history.oldest(one) for one in (second, left, again)] == [first, joined, again]


def test_a_rollback_returns_to_the_generation_of_its_snapshot() -> None:
    history = History()
    first = history.take()
    history.change_view("abc")
    joined = history.take()
    history.roll_back(first, "ab")
    assert history.generation(history.take()) == 0
    history.change_view("abd")
    assert history.generation(history.take()) == 2
    history.roll_back(joined, "abc")
    assert history.generation(history.take()) == 1
    history.roll_back(None, "ab")
    assert history.generation(history.take()) == 0


def test_the_oldest_remaining_snapshot_is_the_reference() -> None:
    history = History()
    first, second = history.take(), history.take()
    third = history.take()
    history.append(Remove(first, "old", 0))
    assert history.oldest(third) == second


def test_many_removed_snapshots_are_forgotten() -> None:
    history = History()
    for _ in range(200):
        history.append(Remove(history.take(), "old", 0))
    assert len(history.generations._of) < 50


def test_a_store_is_new_until_its_first_snapshot() -> None:
    history = History()
    assert history.generations.is_new(history.state)
    history.take()
    assert not history.generations.is_new(history.state)


def test_snapshots_before_a_checkpoint_are_not_compared() -> None:
    history = History()
    first = history.take()
    history.change_view("abc")
    # A coordinator that starts from a checkpoint here has not read the log before it.
    history.generations = Generations()
    assert not history.generations.is_new(history.state)
    later = history.take()
    assert history.oldest(later) == later
    history.roll_back(first, "ab")
    assert history.generation(history.take()) != history.generation(later)
