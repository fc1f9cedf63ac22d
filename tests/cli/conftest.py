"""Commands are printed as a user would call them who has this installation on the path."""

import os
import sys
from pathlib import Path

import pytest


@pytest.fixture(autouse=True)
def installation_on_the_path(monkeypatch):
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
