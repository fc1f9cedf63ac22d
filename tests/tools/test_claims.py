"""tools/claims.py: which promises a test cites, and what --check refuses."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

PROMISES = """
[groups]
C = "the algorithm"
[promises.C1]
short = "Any process may initiate."
status = "built"
code = ["marker.py"]
[promises.C2]
short = "Markers come first."
status = "planned"
"""


def load_tool() -> ModuleType:
    """The tool is a script outside the package, so it is loaded from its file."""
    path = Path(__file__).parents[2] / "tools" / "claims.py"
    spec = importlib.util.spec_from_file_location("claims", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    # Dataclasses look their module up by name.
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


claims = load_tool()


@pytest.fixture
def project(tmp_path: Path) -> Path:
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs/promises.toml").write_text(PROMISES)
    (tmp_path / "tests/claims").mkdir(parents=True)
    (tmp_path / "src/strobe").mkdir(parents=True)
    (tmp_path / "src/strobe/marker.py").touch()
    return tmp_path


def write_test(project: Path, source: str) -> None:
    (project / "tests/claims/test_algorithm.py").write_text(source)


@pytest.mark.parametrize(
    ("name", "docstring", "ids"),
    [
        ("test_C3_first_marker", None, ["C3"]),
        ("test_E6_E10_storm", None, ["E6", "E10"]),
        ("test_storm", "E6, E10: no storm.", ["E6", "E10"]),
        ("test_C3_first_marker", "C3: again.", ["C3"]),
        ("test_two", "C1.", ["C1"]),
        ("test_two", "C2, C1", ["C2", "C1"]),
        ("test_two", "C1 and C2. Both.", ["C1", "C2"]),
        ("test_two", "C1, and no other entry.", ["C1"]),
        ("test_two", "An entry is read once (C1).", ["C1"]),
        ("test_two", "An entry (C2; only live), once (C1).", ["C2", "C1"]),
        ("", "Every rule (C1-C3), and U1 (U1).", ["C1", "C2"]),
        ("", "C2: all of it.", ["C2"]),
        ("test_marker", "Process P1 sends: nothing is cited here.", []),
        ("test_marker", "C2 was committed in the fork, after C1.", []),
        ("test_marker_C3", None, []),
    ],
)
def test_ids_are_cited_in_name_at_start_or_in_parentheses(
    project: Path, name: str, docstring: str | None, ids: list[str]
) -> None:
    promises = claims.Promises.read(project / "docs/promises.toml")
    assert claims.cited_ids(name, docstring, promises) == ids


def test_check_holds_after_writing(project: Path) -> None:
    write_test(project, "class TestInitiating:\n    def test_C1_anyone(self): ...\n")
    assert claims.main([], project) == 0
    assert claims.main(["--check"], project) == 0
    written = (project / "docs/claims.md").read_text()
    assert "`tests/claims/test_algorithm.py::TestInitiating::test_C1_anyone`" in written


def test_check_names_a_built_promise_without_a_test(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    claims.main([], project)
    assert claims.main(["--check"], project) == 1
    message = capsys.readouterr().err
    assert "C1 is built, but no test" in message
    assert "C2" not in message


def test_check_refuses_stale_claims(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_test(project, "def test_C1_anyone(): ...\n")
    claims.main([], project)
    write_test(project, "def test_C1_anyone_at_all(): ...\n")
    assert claims.main(["--check"], project) == 1
    assert "docs/claims.md is stale" in capsys.readouterr().err


def test_an_unknown_id_is_refused(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_test(project, "def test_C9_unheard_of(): ...\n")
    assert claims.main([], project) == 1
    assert "test_C9_unheard_of cites C9, which is no promise" in capsys.readouterr().err


def test_tests_elsewhere_are_indexed_by_file(project: Path) -> None:
    write_test(project, "def test_C1_anyone(): ...\n")
    (project / "tests/test_more.py").write_text("def test_C1_two(): ...\ndef test_other(): ...\n")
    (project / "tests/test_file.py").write_text('"""All of initiating (C1)."""\ndef test_a(): ...\ndef test_b(): ...\n')
    (project / "tests/test_start.py").write_text('"""C1: each process in turn."""\ndef test_a(): ...\n')
    claims.main([], project)
    written = (project / "docs/claims.md").read_text()
    assert "- also: `tests/test_file.py`, `tests/test_more.py`, `tests/test_start.py`\n" in written


def test_check_names_code_that_does_not_exist(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_test(project, "def test_C1_anyone(): ...\n")
    claims.main([], project)
    (project / "src/strobe/marker.py").unlink()
    assert claims.main(["--check"], project) == 1
    assert "C1: src/strobe/marker.py does not exist" in capsys.readouterr().err
