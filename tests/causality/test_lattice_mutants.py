"""The rules of the lattice, each broken by one change: a comparison with the definitions must notice each one (P4)."""

import inspect
from types import ModuleType

import pytest
from tests.causality.small_lattices import wrong_clocks, wrong_conjunctions, wrong_levels, wrong_walks

from strobe.causality.lattice import compiled as compiling
from strobe.causality.lattice import conjunctive, enumeration, kernels
from strobe.causality.lattice.compiled import PLAIN, Kernels


def mutant(module: ModuleType, rule: str, broken: str) -> ModuleType:
    """Return `module` with one rule broken."""
    source = inspect.getsource(module)
    assert source.count(rule) == 1, f"{rule!r} is not one place of {module.__name__}"
    changed = ModuleType(module.__name__)
    exec(compile(source.replace(rule, broken), "mutant", "exec"), changed.__dict__)
    return changed


def kernels_with(rule: str, broken: str) -> Kernels:
    module = mutant(kernels, rule, broken)
    return Kernels(module.lexical, module.successors, module.clock_rows, module.least_cuts)


def test_the_unchanged_clocks_pass() -> None:
    """tests/claims/test_lattice.py shows the same of the other rules."""
    assert not list(wrong_clocks(PLAIN))


def test_a_walk_is_the_same_wherever_its_blocks_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiling, "is_loaded", lambda: True)
    monkeypatch.setattr(enumeration, "_AT_ONCE", 2)
    assert not list(wrong_walks())


@pytest.mark.parametrize(
    ("rule", "broken"),
    [
        ("clocks[row, before] <= cut[before]", "True"),  # an event happens before its cause
        ("clocks[row, before] <= cut[before]", "clocks[row, before] < cut[before]"),
        ("if before == k:", "if k == last - 1 or before == k:"),
        (
            "while cut[last] < top and",
            "while cut[last] < lengths[last] and",
        ),  # the requirements of the last process are ignored
        ("top = tops[k - 1] if k > 0 else lengths[last]", "top = lengths[last]"),
        ("top = tops[k - 1] if k > 0 else lengths[last]", "pass"),
        (
            "need = clocks[row, q]\n",
            "need = 0\n",
        ),  # the requirements of an event on the processes behind it are ignored
        ("need = floors[k - 1, q]", "pass"),  # the requirements of the processes before it are ignored
        ("cut[q] = need", "pass"),  # the processes behind it keep their positions
        ("floors[p, q] = floors[k, q]", "pass"),
        ("if cut[k] < lengths[k]:", "if cut[k] + 1 < lengths[k]:"),  # the last event never happens
        ("k -= 1", "k -= 2"),
    ],
)
def test_a_broken_walk_is_noticed(monkeypatch: pytest.MonkeyPatch, rule: str, broken: str) -> None:
    monkeypatch.setattr(compiling, "is_loaded", lambda: False)
    monkeypatch.setattr(compiling, "PLAIN", kernels_with(rule, broken))
    with pytest.raises((AssertionError, IndexError)):
        assert next(wrong_walks(), None) is None


@pytest.mark.parametrize(
    ("rule", "broken"),
    [
        ("if q != k and clocks[row, q] > cuts[parent, q]:", "if False:"),
        ("if q != k and clocks[row, q] > cuts[parent, q]:", "if q != k and clocks[row, q] >= cuts[parent, q]:"),
        ("parents[written] = parent", "parents[written] = 0"),
        ("steps[written] = k", "steps[written] = 0"),
        ("if known:\n", "if True:\n"),
    ],
)
def test_a_broken_step_between_levels_is_noticed(monkeypatch: pytest.MonkeyPatch, rule: str, broken: str) -> None:
    monkeypatch.setattr(compiling, "is_loaded", lambda: False)
    monkeypatch.setattr(compiling, "PLAIN", kernels_with(rule, broken))
    with pytest.raises((AssertionError, IndexError)):
        assert next(wrong_levels(), None) is None


@pytest.mark.parametrize(
    ("rule", "broken"),
    [
        ("clocks[row, q] = clocks[row - 1, q]", "pass"),
        ("clocks[row, processes[i]] += 1", "clocks[row, 0] += 1"),
        ("if clocks[cause, q] > clocks[row, q]:", "if clocks[cause, q] < clocks[row, q]:"),
        ("for place in range(cause_starts[i], cause_starts[i + 1]):", "for place in range(0):"),
    ],
)
def test_a_broken_clock_is_noticed(rule: str, broken: str) -> None:
    assert next(wrong_clocks(kernels_with(rule, broken)), None) is not None


@pytest.mark.parametrize(
    ("rule", "broken"),
    [
        ("if states[other] < need:", "if states[other] + 1 < need:"),
        ("if states[other] < need:", "if False:"),
        ("_next_good(tables[other], need) if other in tables else need", "need"),
        ("unsettled.append(other)", "pass"),
        (">= begins.first", "> begins.first"),
        (">= begins.first", ">= begins.first - 1"),
        ("ends.last + 1)[first]", "ends.last)[first]"),
        ("if ends.last == run.lengths[second]:", "if False:"),
        ("yield other, process", "pass"),
        ("unsettled.append(second)", "pass"),
        ("yield Stretch(first, state - 1)", "yield Stretch(first, state)"),
    ],
)
def test_a_broken_rule_for_conjunctions_is_noticed(rule: str, broken: str) -> None:
    with pytest.raises((AssertionError, IndexError)):
        assert next(wrong_conjunctions(mutant(conjunctive, rule, broken)), None) is None
