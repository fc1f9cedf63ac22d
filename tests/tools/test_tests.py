"""A test that cannot fail is a defect: a function defined in a test must also be used there."""

import ast
from pathlib import Path

TESTS = Path(__file__).parents[1]


def unused(tree: ast.AST) -> list[str]:
    """Return the functions inside functions that are never called, passed on or decorated."""
    found = []
    for outer in ast.walk(tree):
        if isinstance(outer, ast.FunctionDef | ast.AsyncFunctionDef):
            used = {name.id for name in ast.walk(outer) if isinstance(name, ast.Name)}
            found += [
                f"{outer.name}: {inner.name}"
                for inner in outer.body
                if isinstance(inner, ast.FunctionDef | ast.AsyncFunctionDef)
                if inner.name not in used and not inner.decorator_list
            ]
    return found


def test_a_scenario_that_is_not_run_is_found() -> None:
    assert unused(ast.parse("def test_one():\n  async def scenario(): ...\n")) == ["test_one: scenario"]
    assert unused(ast.parse("def test_one():\n  async def scenario(): ...\n  run(scenario())\n")) == []


def test_every_scenario_is_run() -> None:
    found = {str(path): unused(ast.parse(path.read_text())) for path in TESTS.rglob("*.py")}
    assert {path: names for path, names in found.items() if names} == {}
