"""docs/architecture.md names files and definitions: it must not become outdated."""

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src" / "strobe"
PLAN = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
STEPS = re.findall(r"`([a-z_/]+\.py)` `([A-Za-z_.]+)`", PLAN)


def definitions(tree: ast.AST, prefix: str = "") -> set[str]:
    """Return the names of the classes and functions in a module, and of the members of its classes."""
    found = set()
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            found.add(prefix + node.name)
        if isinstance(node, ast.ClassDef):
            found |= definitions(node, f"{prefix}{node.name}.")
    return found


def test_the_three_walks_are_described() -> None:
    walks = PLAN.split("## Three walks")[1].split("\n### ")[1:]
    assert [walk.partition("\n")[0] for walk in walks] == [
        "A message, from `ctx.send` to `receive`",
        "A snapshot, from the schedule to its commit",
        "A commit, to its verdict",
    ]
    assert all(len(re.findall(r"^\d+\. `", walk, re.MULTILINE)) >= 8 for walk in walks)


@pytest.mark.parametrize(("file", "name"), STEPS, ids=[f"{file}-{name}" for file, name in STEPS])
def test_each_step_of_a_walk_exists(file: str, name: str) -> None:
    assert name in definitions(ast.parse((SOURCE / file).read_text(encoding="utf-8")))


def test_every_package_is_in_the_plan() -> None:
    packages = {path.parent.relative_to(SOURCE).as_posix() for path in SOURCE.rglob("__init__.py")} - {"."}
    assert {package for package in packages if f"`{package}/`" not in PLAN and f"### {package}\n" not in PLAN} == set()


def test_every_package_describes_its_purpose() -> None:
    for path in SOURCE.rglob("__init__.py"):
        assert len(ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or "") > 40, path


def test_no_folder_is_crowded_and_module_names_are_unique() -> None:
    folders: dict[Path, int] = {}
    names: dict[tuple[str, str], Path] = {}
    for path in sorted(SOURCE.rglob("*.py")):
        folders[path.parent] = folders.get(path.parent, 0) + 1
        if path.name != "__init__.py":
            package = path.relative_to(SOURCE).parts[0]
            assert (package, path.name) not in names, (path, names[package, path.name])
            names[package, path.name] = path
    assert {folder: count for folder, count in folders.items() if count > 22} == {}


def test_no_class_name_has_two_meanings() -> None:
    # The simulator has its own hosts for a process and for the coordinator.
    twice_on_purpose = {"Coordinator", "Node"}
    found: dict[str, Path] = {}
    for path in sorted(SOURCE.rglob("*.py")):
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_") and node.name not in twice_on_purpose:
                assert node.name not in found, (node.name, path, found[node.name])
                found[node.name] = path
