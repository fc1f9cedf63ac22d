"""`strobe init`: the project runs, and nothing is overwritten."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from tests.cli.command_line import refused, run

from strobe.cli.project.templates import FILES


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_the_printed_steps_run_when_pasted(here):
    result = run("init", "bank")
    assert (result.code, result.err) == (0, "")
    steps = result.out.partition("next:\n")[2]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST")}
    pasted = steps.replace("--for 5", "--for 1").replace("--seeds 20", "--seeds 2")
    done = subprocess.run(
        ["bash", "-e"], input=pasted, cwd=here, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, (pasted, done.stdout, done.stderr)
    assert "2 passed" in done.stdout
    assert "in flight" in done.stdout


def test_the_system_file_describes_the_same_system():
    assert run("init", "bank").code == 0
    simulated = [run("simulate", f"bank/{spec}", "--seed", "4") for spec in ("system.py:system", "system.toml")]
    assert [result.code for result in simulated] == [0, 0]
    events = [result.out.partition(",")[0] for result in simulated]
    assert events[0] == events[1]


def test_the_readme_of_the_project_names_its_files_and_commands():
    assert run("init").code == 0
    for file in FILES:
        assert file == "README.md" or f"`{file}`" in Path("README.md").read_text()
    for line in Path("README.md").read_text().splitlines():
        words = line.split()
        if words[:1] == ["strobe"]:
            assert run(*words[1 : 3 if words[1] == "snapshot" else 2], "--help").code == 0, line


@pytest.mark.parametrize("file", FILES)
def test_no_file_is_overwritten(here, file):
    there = here / "bank" / file
    there.parent.mkdir()
    there.write_text("mine")
    refused(run("init", "bank"), f"bank/{file} exists already, so nothing was written")
    assert there.read_text() == "mine"
    assert list(there.parent.iterdir()) == [there]


def test_a_place_that_cannot_be_written_is_named(here):
    (here / "bank").write_text("a file")
    refused(run("init", "bank"), "cannot write bank", "choose another place")


def test_as_a_document_it_lists_files_and_steps(here):
    document = run("init", "bank", "--json").document
    assert document["files"] == list(FILES)
    assert document["next"][0] == "cd bank"
    shutil.rmtree(here / "bank")
    assert run("init", "--json").document["next"][0].endswith("simulate system.py:system --seeds 20")
    assert sys.executable in document["next"][-1] or document["next"][-1].startswith("python ")
