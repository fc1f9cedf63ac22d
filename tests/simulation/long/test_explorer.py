"""The explorer: which states it visits, which bugs it catches, and that it runs the real classes (P3)."""

import msgspec
import pytest

from strobe.protocol import PROTOCOLS, AlignedThenUnaligned, ChandyLamport, LaiYang
from strobe.protocol.process.effects import ResumeChannel
from strobe.protocol.process.events import MessagesSent
from strobe.simulation.explorer import Space, explore, scenario, scenarios, smallest
from strobe.simulation.explorer.path_replay import play
from strobe.simulation.mutants.barrier_mutants import ForgottenWhenTimeIsOver, HeldForGood
from strobe.simulation.mutants.catalog import MUTANTS
from strobe.simulation.mutants.protocol_mutants import MarkerAfterMessage

DIAMOND = ("ab", "ac", "bd", "cd")
SMALL = [known.name for known in scenarios() if not known.large]


@pytest.mark.parametrize("name", SMALL)
def test_every_interleaving_of_a_small_system_is_right(name):
    explored = explore(scenario(name))
    assert explored.holds, explored.problem
    assert explored.ends > 0


def test_the_explorer_runs_the_class_that_hosts_import(monkeypatch):
    assert explore(smallest("chandy-lamport")).holds
    monkeypatch.setitem(PROTOCOLS, "chandy-lamport", MarkerAfterMessage)
    assert not explore(smallest("chandy-lamport")).holds


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_merging_equal_states_hides_nothing(protocol):
    """Every path without merging reaches the same states and the same ends as the search that merges equal states."""
    merged, apart = (Space(smallest(protocol), merge=merge, reduce=False) for merge in (True, False))
    assert _meanings(merged) == _meanings(apart)
    assert apart.handles > 5 * merged.handles


def test_taking_commuting_counts_at_once_hides_no_end():
    """After a crash, a relayed count that commutes with all other steps is taken first. That does not change the
    ends.
    """
    crashing = msgspec.structs.replace(smallest("lai-yang"), crash=True)
    reduced, whole = Space(crashing), Space(crashing, reduce=False)
    assert _snapshots_and_ends(reduced) == _snapshots_and_ends(whole)
    assert whole.handles >= reduced.handles


@pytest.mark.parametrize(
    "name",
    ["join-unaligned", "join-unaligned-twice", "diamond-unaligned", "join-timed", "pair-timed-twice"],
)
def test_taking_commuting_steps_first_hides_no_snapshot_and_no_end(name):
    """P3: with overtaking barriers. The timed diamond was checked too, which takes a minute (docs/barriers.md)."""
    reduced, whole = Space(scenario(name)), Space(scenario(name), reduce=False)
    assert _snapshots_and_ends(reduced) == _snapshots_and_ends(whole)
    assert len(reduced.recorded) > 0


def _snapshots_and_ends(space):
    """Return the meaning of each snapshot that can be complete, and of each state without a next step."""
    snapshots, ends, waiting = set(), set(), [space.start()]
    known = set(waiting)
    while waiting:
        state = waiting.pop()
        following = {after for _, after in space.successors(state)}
        for snapshot, numbers in space.complete(state):
            snapshots.add((snapshot, tuple(space.fragments.keys[number] for number in numbers)))
        if not following:
            ends.add(space.meaning(state))
        waiting += following - known
        known |= following
    return snapshots, ends


def _meanings(space):
    """Return the meaning of each visited state, and whether it is an end. Each path is followed to its end."""
    found, waiting, known = set(), [space.start()], set()
    while waiting:
        state = waiting.pop()
        if space.merge and state in known:
            continue
        known.add(state)
        following = [after for _, after in space.successors(state)]
        found.add((space.meaning(state), not following))
        waiting += following
    return found


@pytest.mark.parametrize("mutant", [m for m in MUTANTS if m.explored_on], ids=lambda mutant: mutant.name)
def test_a_mutant_has_a_counterexample_that_can_be_played(mutant):
    where = scenario(mutant.explored_on)
    explored = explore(where.reordering() if mutant.reorder else where, mutant.protocol_class)
    assert explored.problem
    stage = play(explored.scenario, mutant.protocol_class, explored.path)
    assert len(stage.moments) >= len(explored.path)


@pytest.mark.parametrize(
    "mutant", [m for m in MUTANTS if m.explored_on and "timed" in m.explored_on], ids=lambda m: m.name
)
def test_a_counterexample_is_replayed_step_by_step_exactly(mutant, monkeypatch):
    """A barrier in transit reaches its machine in a step of its own, or not at all."""
    explored = explore(scenario(mutant.explored_on), mutant.protocol_class)
    handled = []
    handle = mutant.protocol_class.handle
    monkeypatch.setattr(
        mutant.protocol_class, "handle", lambda self, event: handled.append(event) or handle(self, event)
    )
    play(explored.scenario, mutant.protocol_class, explored.path)
    expected = [action.event for action in explored.path if action.kind in ("deliver", "control", "timeout")]
    assert [event for event in handled if not isinstance(event, MessagesSent)] == expected


def test_a_counterexample_is_a_shortest_one():
    """Breadth first: no path of fewer steps leads to a violation."""
    explored = explore(scenario("pair-cl"), MarkerAfterMessage)
    space = Space(scenario("pair-cl"), MarkerAfterMessage)
    level = {space.start()}
    for _ in range(len(explored.path) - 1):
        level = {after for state in level for _, after in space.successors(state)}
        assert not any(list(space.complete(state)) for state in level)


def test_the_scenarios_are_those_promised():
    names = {known.name for known in scenarios()}
    for protocol in ("cl", "ly"):
        assert {f"pair-{protocol}", f"pair-{protocol}-crash"} <= names
        pair = scenario(f"pair-{protocol}")
        assert (pair.messages, len(pair.snapshots)) == (3, 2)
        for shape in ("ring", "complete"):
            assert {f"{shape}-{protocol}-{initiator}" for initiator in "abc"} <= names
            assert {f"{shape}-{protocol}-{initiator}-crash" for initiator in "abc"} <= names


def test_barriers_are_explored_on_a_diamond_with_a_join():
    for short in ("aligned", "unaligned", "timed"):
        diamond = scenario(f"diamond-{short}")
        assert [(spec.source, spec.target) for spec in diamond.view.channels] == [tuple(edge) for edge in DIAMOND]
        for name in (f"join-{short}", f"join-{short}-rollback", f"pair-{short}-twice", f"pair-{short}-crash"):
            assert scenario(name).protocol == diamond.protocol
        assert not diamond.large
        assert not scenario(f"join-{short}-twice").large


class WaitedForTwice(AlignedThenUnaligned):
    """T2 broken: after the time limit, a process waits again for barriers that it has already handled."""

    def _turn(self, snapshot):
        held = self.aligning.pop(snapshot, set())
        return [*super()._turn(snapshot), *(ResumeChannel(channel) for channel in sorted(held))]


@pytest.mark.parametrize("broken", [HeldForGood, ForgottenWhenTimeIsOver, WaitedForTwice])
def test_V5_a_broken_time_out_rule_has_a_counterexample_at_a_join(broken):
    explored = explore(scenario("join-timed-twice"), broken)
    assert explored.problem
    assert "timeout" in [action.kind for action in explored.path]
    assert len(play(explored.scenario, broken, explored.path).moments) >= len(explored.path)


class CountsFromOneAgain(ChandyLamport):
    """R1 broken: a restored process counts as if nothing had been sent or received."""

    @classmethod
    def restored(cls, process, view, epoch, fragment, sent_counts):
        return cls(process, view, epoch)


class KeepsOldIndices(LaiYang):
    """V1 broken: cut indices of the old epoch count in the new one."""

    @classmethod
    def restored(cls, process, view, epoch, fragment, sent_counts):
        endpoint = super().restored(process, view, epoch, fragment, sent_counts)
        for incoming in endpoint.incoming.values():
            incoming.restored_to = 0
        return endpoint


@pytest.mark.parametrize("broken", [CountsFromOneAgain, KeepsOldIndices])
def test_R1_a_wrong_rollback_has_a_counterexample_that_can_be_replayed(broken):
    name = "pair-cl-rollback" if issubclass(broken, ChandyLamport) else "pair-ly-rollback"
    explored = explore(scenario(name), broken)
    assert explored.problem
    assert "rollback" in [action.kind for action in explored.path]
    stage = play(explored.scenario, broken, explored.path)
    assert any("goes back to S" in moment.text for moment in stage.moments)
