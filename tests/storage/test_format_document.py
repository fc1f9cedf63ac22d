"""docs/format.md says what the code does: its worked example is what the code writes."""

from pathlib import Path

from tests.storage.format_example import TITLE, render

from strobe.protocol.log import Entry
from strobe.storage.header import FORMAT, VERSION

DOCUMENT = (Path(__file__).parents[2] / "docs" / "format.md").read_text()


def test_the_worked_example_is_what_the_code_writes() -> None:
    written = DOCUMENT[DOCUMENT.index(TITLE) :]
    assert written == render(), "run `python -m tests.storage.format_example` and paste what it prints"


def test_every_type_of_entry_and_the_version_are_documented() -> None:
    for entry in Entry.__args__:
        assert f"| `{entry.__struct_config__.tag}` |" in DOCUMENT
    assert DOCUMENT.startswith(f"# The format of a store, version {VERSION}")
    assert f'`"{FORMAT}"`' in DOCUMENT
