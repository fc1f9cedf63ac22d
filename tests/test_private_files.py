"""Files appear whole or not at all, and a file that must not be replaced has one creator."""

import stat
from pathlib import Path

import pytest

from strobe.private_files import FileStep, create_file


class Interrupted(BaseException):
    """Ends the writing of a file, as a signal would."""


@pytest.mark.parametrize("last", FileStep)
def test_a_created_file_is_whole_or_absent_after_each_step(tmp_path: Path, last: FileStep) -> None:
    path = tmp_path / "a.key"
    seen = []

    def on_step(step: FileStep) -> None:
        seen.append((step, path.read_bytes() if path.exists() else None))
        if step == last:
            raise Interrupted

    with pytest.raises(Interrupted):
        create_file(path, b"all of it", 0o600, on_step)
    assert seen == [(step, b"all of it" if step >= FileStep.NAMED else None) for step in FileStep if step <= last]
    assert [left.name for left in tmp_path.iterdir()] == (["a.key"] if last >= FileStep.NAMED else [])


def test_a_created_file_has_its_mode_whatever_the_umask(tmp_path: Path) -> None:
    create_file(tmp_path / "a.pub", b"public", 0o644)
    assert stat.S_IMODE((tmp_path / "a.pub").stat().st_mode) == 0o644


def test_of_two_creators_the_first_one_wins(tmp_path: Path) -> None:
    path = tmp_path / "a.key"

    def overtaken(step: FileStep) -> None:
        if step == FileStep.SYNCED:
            create_file(path, b"first", 0o600)

    with pytest.raises(FileExistsError):
        create_file(path, b"second", 0o600, overtaken)
    assert path.read_bytes() == b"first"
    assert [left.name for left in tmp_path.iterdir()] == ["a.key"]
