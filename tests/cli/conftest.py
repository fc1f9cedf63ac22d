"""Fixtures of the command tests: a store to work on, and this installation's commands on the PATH."""

import os
import shutil
import sys
from pathlib import Path

import pytest
from tests.cli.command_line import simulated_store


@pytest.fixture(autouse=True)
def installation_on_the_path(monkeypatch):
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")


@pytest.fixture(scope="module")
def pristine(tmp_path_factory):
    """A store with the snapshots of a simulation without faults."""
    return simulated_store(tmp_path_factory.mktemp("pristine"))


@pytest.fixture
def store(pristine, tmp_path):
    """A copy of `pristine` that a test may damage."""
    return shutil.copytree(pristine, tmp_path / "store")
