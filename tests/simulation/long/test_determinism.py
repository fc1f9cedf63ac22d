"""The same seed gives the same bytes, whatever the interpreter's hash order."""

import os
import subprocess
import sys
from pathlib import Path


def fingerprint(folder: Path, hash_seed: str, seed: int = 7) -> str:
    command = [sys.executable, "-m", "tests.simulation.fingerprint", str(folder), str(seed)]
    root = Path(__file__).parents[3]
    environment = os.environ | {"PYTHONHASHSEED": hash_seed}
    done = subprocess.run(command, cwd=root, env=environment, capture_output=True, text=True, check=True)
    return done.stdout.strip()


def test_the_same_seed_gives_the_same_trace_and_the_same_store(tmp_path):
    first = fingerprint(tmp_path / "first", "1")
    assert first == fingerprint(tmp_path / "second", "2")
    assert first != fingerprint(tmp_path / "third", "1", seed=8)
