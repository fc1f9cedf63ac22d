"""Files and messages that are no valid text, or nested too deep, give an error that names them, and no other error."""

from collections.abc import Callable
from pathlib import Path

import pytest

from strobe.cli.snapshots.verify import read_view
from strobe.errors import StrobeError, TransportError
from strobe.runtime.api.discovery import FILE, discover
from strobe.runtime.messages.control import FROM_NODE, unpack
from strobe.storage import Store
from strobe.storage.files.layout import HEADER
from strobe.storage.files.urls import run_directory


def as_view(place: Path, document: bytes) -> None:
    path = place / "view.json"
    path.write_bytes(document)
    read_view(path)


def as_place_of_the_coordinator(place: Path, document: bytes) -> None:
    run = run_directory(str(place))
    run.mkdir(parents=True)
    (run / FILE).write_bytes(document)
    discover(str(place))


def as_header_of_a_store(place: Path, document: bytes) -> None:
    Store.create(place / "store")
    (place / "store" / HEADER).write_bytes(document)
    Store.open(place / "store")


@pytest.mark.parametrize("read", [as_view, as_place_of_the_coordinator, as_header_of_a_store])
@pytest.mark.parametrize(
    "document", [b'{"processes": ["\xff"], "api": "\xc9"}', b'{"other": ' + b"[" * 100_000], ids=["no text", "no end"]
)
def test_a_file_of_invalid_text_or_deep_nesting_is_named(
    tmp_path: Path, read: Callable[[Path, bytes], None], document: bytes
) -> None:
    with pytest.raises(StrobeError, match=r"\.json"):
        read(tmp_path, document)


@pytest.mark.parametrize(
    "fields", [b"\x82\xa7process\xa1\xff\xa6reason\xa0", b"\x91" * 100_000], ids=["no text", "no end"]
)
def test_a_control_message_of_invalid_text_or_nesting_is_refused(fields: bytes) -> None:
    with pytest.raises(TransportError, match="cannot be read"):
        unpack(b"\x92\xa6Failed" + fields, FROM_NODE)
