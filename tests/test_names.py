"""Names of processes and channels follow one rule, wherever they come from (E14)."""

import msgspec
import pytest

from strobe.errors import UsageError
from strobe.names import RULE, Name, check_name, in_words, is_name
from strobe.process import Channel, Process, System
from strobe.protocol import ChannelSpec, SnapshotId
from strobe.protocol.values.bounds import COUNT_MAX

GOOD = [
    "a",
    "a->b",
    "till-7",
    "orders.eu",
    "Käse",
    "プロセス",
    "x" * 200,
    "a:b",
    "~",
    "é" * 100,
    "[1]",
    "a%2Fb",
    "till 7",
]
BAD = [
    "",
    " ",
    " a",
    "a ",
    "a  b",
    "a .b/",
    "a\nb",
    "a\tb",
    "/etc/passwd",
    "a/b",
    "..",
    ".hidden",
    "a\0",
    "\x1b[31m",
    "x" * 201,
    "é" * 101,
]
INVISIBLE = ["a\u200bb", "a\u202eb", "\ufeffa", "a\u2028b", "a\xa0b", "a\x85", "\ue000", "a\xad"]


@pytest.mark.parametrize("name", GOOD)
def test_common_names_are_accepted(name: str) -> None:
    check_name("process", name)
    assert msgspec.json.decode(msgspec.json.encode(name), type=Name) == name


@pytest.mark.parametrize("name", BAD + INVISIBLE)
def test_a_name_that_cannot_be_shown_or_be_a_file_is_refused(name: str) -> None:
    assert not is_name(name)
    with pytest.raises(UsageError, match="cannot be the name of a process"):
        check_name("process", name)


@pytest.mark.parametrize("name", [name for name in BAD + INVISIBLE if len(name) != 101])
def test_a_bad_name_is_refused_when_it_is_decoded(name: str) -> None:
    with pytest.raises(msgspec.ValidationError):
        msgspec.json.decode(msgspec.json.encode(name), type=Name)


ARABIC = "\u0660" * 5 + "\u0661"
NO_IDS = [
    "000001-00000001-",
    "000001-00000001-a  b",
    "000001-00000001-a\n",
    f"{ARABIC}-00000001-a",
    f"000001-{2**64 - 1}-a",
]


@pytest.mark.parametrize("printed", NO_IDS)
def test_an_invalid_snapshot_id_is_refused(printed: str) -> None:
    with pytest.raises(UsageError, match="snapshot id"):
        SnapshotId.parse(printed)


def test_the_highest_counter_is_an_id() -> None:
    assert SnapshotId.parse(f"000001-{COUNT_MAX}-a") == SnapshotId(1, COUNT_MAX, "a")


class Quiet(Process):
    def capture(self) -> bytes:
        return b""

    def restore(self, state: bytes) -> None:
        pass


@pytest.mark.parametrize("name", ["/etc/cron.d/strobe", "x" * 300, "../up", "a\nb"])
def test_a_system_with_an_invalid_name_is_refused(name: str) -> None:
    with pytest.raises(UsageError, match="cannot be the name of a process"):
        System({name: Quiet(), "b": Quiet()}, [Channel("b", "b")])
    with pytest.raises(UsageError, match="cannot be the name of a channel"):
        System({"b": Quiet()}, [Channel("b", "b", id=name)])


def test_the_problem_with_a_decoded_name_is_described() -> None:
    with pytest.raises(msgspec.ValidationError) as refused:
        msgspec.json.decode(b'{"id": "a/b", "source": "a", "target": "b"}', type=ChannelSpec)
    assert in_words(refused.value) == f"Expected a name ({RULE}) - at `$.id`"
