"""What users save at the top of a checkout, such as the README's bank.py, does not make `make check` fail."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
RUFF = Path(sys.executable).parent / "ruff"


@pytest.mark.parametrize("check", [("check",), ("format", "--check")])
def test_ruff_looks_only_into_our_directories(tmp_path: Path, check: tuple[str, ...]) -> None:
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    unformatted = "import os\nimport msgspec\nclass  Money(msgspec.Struct): amount: int\n"
    (tmp_path / "bank.py").write_text(unformatted)
    (tmp_path / "bank").mkdir()
    (tmp_path / "bank" / "system.py").write_text(unformatted)

    def run() -> int:
        return subprocess.run(
            [RUFF, *check, "--no-cache", "."], cwd=tmp_path, check=False, capture_output=True
        ).returncode

    assert run() == 0
    (tmp_path / "src").mkdir()
    (tmp_path / "src" / "ours.py").write_text(unformatted)
    assert run() == 1


def test_the_other_checks_name_what_they_look_at() -> None:
    """mypy and import-linter have lists in pyproject.toml; tools/check adds nothing."""
    lines = [line for line in (ROOT / "tools" / "check").read_text().splitlines() if line.startswith("check ")]
    assert [line.split()[1] for line in lines if line.endswith(" .")] == ["lint", "format"]
