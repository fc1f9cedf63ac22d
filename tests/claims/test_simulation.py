"""The promises of the simulator: exploration, mutants, replay, explanation."""

import pytest
from tests.simulation.systems import players

from strobe.causality.trace import parse_trace
from strobe.protocol.process.first_view import first_view
from strobe.simulation.checkers import all_checkers
from strobe.simulation.explain.explanations import explain
from strobe.simulation.explorer import explore, scenario
from strobe.simulation.faults import Faults
from strobe.simulation.matrix import caught_by
from strobe.simulation.mutants.catalog import MUTANTS
from strobe.simulation.recorder import Recorder
from strobe.simulation.replay import Replay
from strobe.simulation.world import World


def test_P3_the_shipped_code_is_right_in_every_interleaving():
    explored = [explore(scenario(name)) for name in ("pair-cl", "ring-cl-a", "ring-ly-a", "ring-cl-a-crash")]
    assert [result.problem for result in explored] == [""] * len(explored)
    assert sum(result.states for result in explored) > 50_000


def test_P3_a_broken_protocol_has_a_shortest_counterexample():
    mutant = next(mutant for mutant in MUTANTS if mutant.name == "marker-after-message")
    explored = explore(scenario("pair-cl"), mutant.protocol_class)
    assert not explored.holds
    assert explored.path


def test_P4_each_checker_alone_catches_some_mutant():
    alone = {mutant.caught_by[0]: mutant for mutant in MUTANTS if len(mutant.caught_by) == 1}
    assert set(alone) == {checker.name for checker in all_checkers()}
    quick = [alone["cut-consistent"], alone["channels-exact"], alone["proof-verifies"]]
    for mutant in quick:
        assert caught_by(mutant) == set(mutant.caught_by)


def test_R4_replay_of_a_trace_gives_the_same_states():
    system = players("ring", "chandy-lamport")
    recorder = Recorder(first_view(system), 1, "full")
    world = World(system, 1, recorder=recorder)
    world.run(2)
    trace = parse_trace(recorder.text().splitlines(keepends=True))
    replay = Replay(players("ring", "chandy-lamport"), trace)
    replay.run(trace.events())
    assert all(replay.has_state(name, node.capture()) for name, node in world.nodes.items())


def test_R6_the_algorithm_is_explained_step_by_step_by_the_real_code():
    (scene,) = explain("bank3")
    assert {"C1", "C2", "C3", "C4", "C5", "C7"} <= {moment.rule for moment in scene.moments}
    assert scene.outcomes[0].holds


@pytest.mark.parametrize("protocol", ["chandy-lamport", "lai-yang"])
def test_R1_each_message_takes_effect_once_despite_many_rollbacks(protocol):
    faults = Faults(delay_us_max=2000, rollback_every_us=60_000, coordinator_crash_every_us=150_000)
    world = World(players("complete", protocol, snapshots=True), 3, faults=faults, checkers=all_checkers())
    world.run(12)
    assert world.epoch > 3
    assert [str(violation) for violation in world.violations] == []


def test_R1_the_real_code_continues_correctly_from_every_snapshot():
    for name in ("pair-cl-rollback", "pair-ly-rollback"):
        explored = explore(scenario(name))
        assert explored.holds, explored.problem
