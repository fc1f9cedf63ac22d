"""Which processes share a program: `--per-process`, and `host` in system.toml."""

from pathlib import Path

import pytest

from strobe.cli.arguments.live_options import load_live
from strobe.cli.arguments.systems import open_system
from strobe.cli.live.up import shared_programs
from strobe.errors import UsageError

NAMES = ("a", "b", "c", "d", "e")


def test_without_options_every_process_runs_alone() -> None:
    assert shared_programs(NAMES, None, {}) == (list(NAMES), [])


def test_processes_are_divided_in_the_order_of_their_declaration() -> None:
    assert shared_programs(NAMES, 2, {}) == (["e"], [["a", "b"], ["c", "d"]])
    assert shared_programs(NAMES, 99, {}) == ([], [list(NAMES)])


def test_processes_with_the_same_host_share_a_program() -> None:
    hosts = {"a": "left", "d": "left", "c": "right"}
    assert shared_programs(NAMES, None, hosts) == (["c", "b", "e"], [["a", "d"]])
    assert shared_programs(NAMES, 2, hosts) == (["c"], [["a", "d"], ["b", "e"]])


def test_a_program_without_processes_is_refused() -> None:
    with pytest.raises(UsageError, match="--per-process 0"):
        shared_programs(NAMES, 0, {})


def test_a_system_file_names_the_host_of_a_process(tmp_path: Path) -> None:
    file = tmp_path / "system.toml"
    file.write_text('[process.a]\nhost = "left"\n[process.b]\n')
    with open_system(str(file)) as source:
        assert load_live(source).hosts == {"a": "left"}
