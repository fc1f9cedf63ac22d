"""Every error of a user's code becomes one line of text that can be sent to the coordinator."""

from pathlib import Path

import pytest

from strobe.errors import UsageError
from strobe.user_code import explain


class Unspeakable(Exception):
    def __str__(self) -> str:
        return self.args[0]  # type: ignore[no-any-return] # no text, as it turns out


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (ValueError("two\nlines"), "ValueError: two lines"),
        (KeyError(), "KeyError"),
        (UsageError("correct it"), "correct it"),
        (ValueError("caf\udce9.txt"), r"ValueError: caf\udce9.txt"),
        (UsageError("caf\udce9.txt"), r"caf\udce9.txt"),
        (Unspeakable(7), "Unspeakable: its text cannot be shown"),
    ],
)
def test_an_error_is_one_line_of_text_that_can_be_sent(error: Exception, expected: str) -> None:
    assert explain(error) == expected
    explain(error).encode()


def test_a_place_is_reported_without_a_working_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    with pytest.raises(ValueError, match="amount") as raised:
        raise ValueError("amount")
    assert explain(raised.value).startswith(f"ValueError: amount ({__file__}:")
