"""The built wheel works in an environment that has only the packages that `pip install strobe-snapshots` installs."""

import json
import os
import re
import shutil
import subprocess
import sys
import venv
import zipfile
from collections.abc import Iterator
from importlib.metadata import Distribution, distribution
from pathlib import Path

import pytest
from packaging.requirements import Requirement

ROOT = Path(__file__).parents[3]
BIN = Path(sys.executable).parent


def required(name: str, seen: set[str]) -> Iterator[Distribution]:
    """Yield the installed packages that `name` requires without any extra, directly or through others."""
    for line in distribution(name).requires or ():
        requirement = Requirement(line)
        known = requirement.name.lower() in seen
        if not known and (requirement.marker is None or requirement.marker.evaluate({"extra": ""})):
            seen.add(requirement.name.lower())
            yield distribution(requirement.name)
            yield from required(requirement.name, seen)


def link_files(package: Distribution, site: Path) -> None:
    for file in package.files or ():
        if not file.parts[0].startswith("..") and file.suffix != ".pyc":
            target = site / file
            target.parent.mkdir(parents=True, exist_ok=True)
            target.symlink_to(file.locate())


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    built = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory", str(built)]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
    return next(built.glob("*.whl"))


@pytest.fixture(scope="module")
def programs(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory of the programs of a clean environment with the wheel."""
    home = tmp_path_factory.mktemp("clean")
    venv.create(home, symlinks=True)
    site = next(home.glob("lib/python*/site-packages"))
    for package in required("strobe-snapshots", set()):
        link_files(package, site)
    install = [str(BIN / "uv"), "pip", "install", "--offline", "--no-deps", "--python", str(home), str(wheel)]
    subprocess.run(install, check=True, capture_output=True)
    return home / "bin"


def run(programs: Path, directory: Path, *words: str) -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "VIRTUAL_ENV"))}
    return subprocess.run(
        [str(programs / words[0]), *words[1:]],
        cwd=directory,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )


def test_the_wheel_has_the_license_the_readme_and_the_mark_of_types(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        metadata = archive.read(next(name for name in names if name.endswith("METADATA"))).decode()
    assert {"strobe/py.typed", "strobe/__main__.py", "strobe/cli/explain.html"} <= set(names)
    assert any(name.endswith("licenses/LICENSE") for name in names)
    assert "Typing :: Typed" in metadata
    assert "# Strobe" in metadata


def test_the_bank_of_the_readme_runs_in_a_clean_environment(programs: Path, tmp_path: Path) -> None:
    example = re.search(r"```python\n(.*?)```", (ROOT / "README.md").read_text(encoding="utf-8"), re.DOTALL)
    assert example is not None
    (tmp_path / "bank.py").write_text(example[1], encoding="utf-8")
    simulated = run(programs, tmp_path, "strobe", "simulate", "bank.py:bank", "--snapshots", "3", "--store", "store")
    assert simulated.returncode == 0, simulated.stderr
    verified = run(programs, tmp_path, "python", "-m", "strobe", "snapshot", "verify", "--all", "--store", "store")
    assert verified.returncode == 0, verified.stderr


def test_a_command_names_the_extra_that_it_needs(programs: Path, tmp_path: Path) -> None:
    shutil.copy(ROOT / "examples" / "bank.py", tmp_path)
    done = run(programs, tmp_path, "strobe", "up", "bank.py:bank", "--store", "store", "--create")
    assert done.returncode == 3
    assert "pip install 'strobe-snapshots[live]'" in " ".join(done.stderr.split())


def test_doctor_notes_the_absent_extras_and_init_begins_by_installing_what_it_needs(
    programs: Path, tmp_path: Path
) -> None:
    checked = run(programs, tmp_path, "strobe", "doctor", "--json")
    assert checked.returncode == 0, checked.stderr
    verdicts = {one["name"]: one["verdict"] for one in json.loads(checked.stdout)["checks"]}
    assert {verdicts[f"extra {extra}"] for extra in ("live", "spark", "sign")} == {"note"}
    begun = run(programs, tmp_path, "strobe", "init", "bank", "--json")
    assert begun.returncode == 0, begun.stderr
    assert json.loads(begun.stdout)["next"][0].endswith("-m pip install 'strobe-snapshots[live]'")
    simulated = run(programs, tmp_path / "bank", "strobe", "simulate", "system.py:system", "--snapshots", "3")
    assert simulated.returncode == 0, simulated.stderr


def test_the_plugin_is_an_entry_point_of_pytest(programs: Path, tmp_path: Path) -> None:
    program = (
        "from importlib.metadata import entry_points; print([one.value for one in entry_points(group='pytest11')])"
    )
    done = run(programs, tmp_path, "python", "-c", program)
    assert done.stdout == "['strobe.testing.pytest_plugin']\n"


def test_the_public_names_are_listed(programs: Path, tmp_path: Path) -> None:
    program = "import strobe; assert set(strobe.__all__) <= set(dir(strobe)), dir(strobe)"
    done = run(programs, tmp_path, "python", "-c", program)
    assert done.returncode == 0, done.stderr
