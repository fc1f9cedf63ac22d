"""`strobe snapshot predicates`: deadlock, termination and garbage, printed for people and as JSON (G2)."""

import msgspec
import pytest
from tests.cli.command_line import run, simulated_store
from tests.cli.snapshots.processes.test_snapshot import add_inconsistent
from tests.simulation.predicate_runs import EXAMPLES


@pytest.fixture(scope="module")
def stores(tmp_path_factory):
    """One store for a simulation of each example."""
    root = tmp_path_factory.mktemp("examples")
    for name in ("philosophers:greedy", "philosophers:polite", "objects:remembered"):
        module, attribute = name.split(":")
        system = f"{EXAMPLES / module}.py:{attribute}"
        options = ("--faults", "delays", "--snapshots", "12", "--seed", "1", "--store", root / attribute)
        result = run("simulate", system, *options)
        assert result.code == (1 if attribute == "greedy" else 0), result.err  # the simulator finds the deadlock too
    return root


def document(store):
    result = run("snapshot", "predicates", "--json", "--store", store)
    return result.code, msgspec.json.decode(result.out)


def test_a_deadlock_is_a_violation_and_is_shown_with_its_cycle(stores):
    result = run("snapshot", "predicates", "--store", stores / "greedy")
    assert result.code == 1
    assert "deadlock     yes    deadlocked: p0 waits for p4 waits for p3 waits for p2" in result.out
    code, found = document(stores / "greedy")
    assert code == 1
    assert found["deadlock"]["holds"]
    assert found["deadlock"]["waits"]["p0"] == ["p4"]
    assert found["deadlock"]["cores"] == [["p0", "p4", "p3", "p2", "p1"]]
    assert not found["termination"]["holds"]


def test_show_prints_which_process_waits_for_which(stores):
    result = run("snapshot", "show", "--store", stores / "greedy")
    assert "waits for" in result.out
    frame = run("snapshot", "show", "--json", "--store", stores / "greedy").document
    assert {process["process"]: process["declared"]["waits"]["processes"] for process in frame["processes"]} == {
        f"p{number}": [f"p{(number - 1) % 5}"] for number in range(5)
    }


def test_termination_and_garbage_are_no_violations(stores):
    code, found = document(stores / "polite")
    assert (code, found["deadlock"]["holds"], found["termination"]["holds"]) == (0, False, True)
    code, found = document(stores / "remembered")
    assert (code, found["garbage"]["holds"]) == (0, True)
    assert found["garbage"]["things"] > len(found["garbage"]["garbage"]) > 0


def test_a_system_without_declarations_gets_a_note(tmp_path):
    result = run("snapshot", "predicates", "--store", simulated_store(tmp_path))
    assert result.code == 0
    assert "no process declares anything" in result.out


def test_an_inconsistent_cut_is_refused(tmp_path):
    store = simulated_store(tmp_path)
    result = run("snapshot", "predicates", add_inconsistent(store), "--store", store)
    assert (result.code, result.out) == (1, "")
    assert "000001-00000999-a" in result.error
