"""The plan of the code holds: docs/architecture.md names what exists, and packages follow the rules of decisions.md."""

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


MODULES = {".".join(path.relative_to(ROOT / "src").with_suffix("").parts): path for path in SOURCE.rglob("*.py")}
PACKAGES = {name.removesuffix(".__init__"): path for name, path in MODULES.items() if path.name == "__init__.py"}


def parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def public_by_package() -> dict[str, list[str]]:
    """Return what each room that imports nothing itself names as `Public: ...` at the end of its docstring."""
    found = {}
    for package, path in PACKAGES.items():
        docstring = ast.get_docstring(parsed(path)) or ""
        if "__all__" not in path.read_text(encoding="utf-8") and package not in ("strobe", "strobe.protocol"):
            assert "\n\nPublic: " in docstring, f"{path}: end its docstring with `Public:` and the modules for others"
            found[package] = re.findall(r"`([a-zA-Z_.]+)`", docstring.rpartition("\n\nPublic: ")[2])
    return found


def used_from_outside() -> dict[str, set[str]]:
    """Return the modules of each package that code outside its folder imports, also by a name in a string."""
    found: dict[str, set[str]] = {package: set() for package in PACKAGES}
    for path in (ROOT / "src").rglob("*.py"):
        names = set()
        for node in ast.walk(parsed(path)):
            if isinstance(node, ast.ImportFrom) and node.module is not None:
                names |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                names |= set(re.findall(r"strobe(?:\.[a-z_]+)+", node.value))
        for name in names & MODULES.keys():
            if MODULES[name].parent != path.parent:
                found[name.rpartition(".")[0]].add(name.rpartition(".")[2])
    return found


def test_every_package_states_its_purpose_input_and_output() -> None:
    for package, path in PACKAGES.items():
        docstring = ast.get_docstring(parsed(path)) or ""
        assert len(docstring) > 40, path
        if package not in ("strobe", "strobe.protocol"):  # the whole, and the duties of a host: a page of their own
            assert re.search(r"\bIn:\s", docstring), path
            assert re.search(r"\bOut:\s", docstring), path


def test_what_a_room_names_as_public_exists() -> None:
    for package, names in public_by_package().items():
        for name in names:
            module, _, definition = name.partition(".")
            assert f"{package}.{module}" in MODULES, (package, name)
            assert not definition or definition in definitions(parsed(MODULES[f"{package}.{module}"])), (package, name)


def test_other_rooms_use_exactly_the_public_modules_of_a_room() -> None:
    used = used_from_outside()
    public = {package: {name.partition(".")[0] for name in names} for package, names in public_by_package().items()}
    assert public == {package: used[package] for package in public}


def test_no_folder_is_crowded() -> None:
    folders: dict[Path, int] = {}
    for top in (SOURCE, ROOT / "tests", ROOT / "bench"):
        for path in top.rglob("*.py"):
            folders[path.parent] = folders.get(path.parent, 0) + 1
    assert {folder: count for folder, count in folders.items() if count > 22} == {}


def test_module_names_are_unique_in_a_package() -> None:
    names: dict[tuple[str, str], Path] = {}
    for path in sorted(SOURCE.rglob("*.py")):
        if path.name != "__init__.py":
            package = path.relative_to(SOURCE).parts[0]
            assert (package, path.name) not in names, (path, names[package, path.name])
            names[package, path.name] = path


def test_no_class_name_has_two_meanings() -> None:
    # The simulator has its own hosts for a process and for the coordinator.
    twice_on_purpose = {"Coordinator", "Node"}
    found: dict[str, Path] = {}
    for path in sorted(SOURCE.rglob("*.py")):
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_") and node.name not in twice_on_purpose:
                assert node.name not in found, (node.name, path, found[node.name])
                found[node.name] = path


# Each has its reason in docs/decisions.md.
SHORT = {
    "__main__.py",
    "protocol/process/first_view.py",
    "simulation/scheduler.py",
    "spark/log/partitioning.py",
    "storage/files/layout.py",
}


def test_no_file_is_very_short_or_long() -> None:
    lines = lines_below(SOURCE)
    assert {file for file, count in lines.items() if count < 30} == SHORT
    assert {file: count for file, count in lines.items() if count > 400} == {}
    outside = lines_below(ROOT / "tests") | lines_below(ROOT / "bench")
    assert {file: count for file, count in outside.items() if count > 500} == {}


def lines_below(top: Path) -> dict[str, int]:
    """Return the number of lines of each module below a folder."""
    return {
        path.relative_to(top).as_posix(): len(path.read_text(encoding="utf-8").splitlines())
        for path in top.rglob("*.py")
        if path.name != "__init__.py"
    }
