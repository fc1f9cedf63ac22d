"""docs/format.md matches the code: its worked example is what the code writes."""

import re
from pathlib import Path

from tests.storage.format_example import TITLE, render

from strobe import KeyedState
from strobe.protocol.values.log_entries import Entry
from strobe.storage.files.header import FORMAT, VERSION

DOCUMENT = (Path(__file__).parents[3] / "docs" / "format.md").read_text()


def test_the_worked_example_is_what_the_code_writes() -> None:
    written = DOCUMENT[DOCUMENT.index(TITLE) :]
    assert written == render(), "run `python -m tests.storage.format_example` and paste what it prints"


def test_every_type_of_entry_and_the_version_are_documented() -> None:
    for entry in Entry.__args__:
        assert f"| `{entry.__struct_config__.tag}` |" in DOCUMENT
    assert DOCUMENT.startswith(f"# The format of a store, version {VERSION}")
    assert f'`"{FORMAT}"`' in DOCUMENT


def test_the_segment_of_keyed_state_is_what_the_code_writes() -> None:
    lines = re.findall(r"^(ce [0-9a-f ]+?)   +\d+ bytes: ", DOCUMENT, re.MULTILINE)
    state = KeyedState(dict[str, int])
    state["tea"] = {"left": 100, "sold": 0}
    with state.freeze() as frozen:
        assert b"".join(frozen.slices()) == bytes.fromhex("".join(lines))
