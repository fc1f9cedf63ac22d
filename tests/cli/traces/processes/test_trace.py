"""`strobe trace verify`: consistent cuts, inconsistent ones, and files that are not traces."""

import json

import pytest
from tests.cli.command_line import BANK, refused, run

HEADER = {
    "strobe_trace": 1,
    "processes": ["a", "b"],
    "channels": [{"id": "a->b", "source": "a", "target": "b"}],
}
SENT = {"kind": "send", "process": "a", "position": 2, "channel": "a->b", "ordinal": 1}
RECEIVED = {"kind": "receive", "process": "b", "position": 2, "channel": "a->b", "ordinal": 1}
STARTS = [{"kind": "internal", "process": process, "position": 1, "name": "start"} for process in "ab"]
TICK = {"kind": "internal", "process": "a", "position": 2, "name": "tick"}


def record(process, position, snapshot="s1"):
    return {"kind": "record", "process": process, "position": position, "snapshot_id": snapshot}


@pytest.fixture
def write(tmp_path):
    """Return a function that writes a trace of these lines."""

    def write_file(*lines):
        file = tmp_path / "run.jsonl"
        file.write_text("".join(json.dumps(line) + "\n" for line in (HEADER, *lines)))
        return file

    return write_file


def test_a_consistent_cut_holds(write):
    result = run("trace", "verify", write(*STARTS, record("a", 1), TICK, SENT, record("b", 1), RECEIVED))
    assert result.code == 0
    assert "consistent" in result.out
    assert "4 events of 2 processes, 1 message: they fit together" in result.out
    assert "1 cut: 1 consistent, 0 violated" in result.out


def test_an_inconsistent_cut_is_violated_and_its_message_named(write):
    file = write(*STARTS, record("a", 1), TICK, SENT, RECEIVED, record("b", 2))
    result = run("trace", "verify", file)
    assert result.code == 1
    assert (
        "s1: message 1 of a->b is received in the cut (event 2 of b) but sent outside it (event 2 of a)" in result.out
    )
    document = run("trace", "verify", file, "--json").document
    assert document["holds"] is False
    assert document["cuts"][0]["orphans"][0]["ordinal"] == 1


def test_an_incomplete_cut_is_undecided(write):
    result = run("trace", "verify", write(*STARTS, record("a", 1)))
    assert result.code == 0
    assert "no record by b" in result.out
    assert "1 undecided" in result.out


def test_a_trace_without_snapshots_still_has_its_events_checked(write):
    result = run("trace", "verify", write(*STARTS))
    assert result.code == 0
    assert "0 cuts" in result.out


def test_a_gap_in_the_ordinals_is_named(write):
    refused(run("trace", "verify", write(*STARTS, TICK, SENT | {"ordinal": 2})), "line 5: a, position 2, channel a->b")


def test_a_gap_in_the_positions_is_named(write):
    refused(run("trace", "verify", write(*STARTS, SENT | {"position": 4})), "line 4: a, position 4")


def test_a_duplicate_ordinal_is_named(write):
    refused(run("trace", "verify", write(*STARTS, TICK, SENT, SENT)), "line 6: a, position 2, channel a->b")


def test_every_offending_event_is_named(write):
    file = write(*STARTS, TICK, SENT | {"ordinal": 2}, RECEIVED | {"position": 7})
    refused(run("trace", "verify", file), "line 5: ", "line 6: ")


def test_a_truncated_trace_is_refused_with_the_line(tmp_path, write):
    file = write(*STARTS)
    file.write_bytes(file.read_bytes()[:-9])
    refused(run("trace", "verify", file), "line 3: the file ends in the middle of this line")


@pytest.mark.parametrize("content", [bytes(range(256)), b"", b"\x7fELF" + bytes(64), b"{\xff}\n", b"a,b\n1,2\n"])
def test_a_file_that_is_not_a_trace_is_refused(tmp_path, content):
    (tmp_path / "file").write_bytes(content)
    refused(run("trace", "verify", tmp_path / "file"), str(tmp_path / "file"))


def test_a_missing_file_is_refused(tmp_path):
    refused(run("trace", "verify", tmp_path / "nothing"), "nothing cannot be read as a trace")


def test_a_trace_of_another_version_is_refused(tmp_path):
    (tmp_path / "file").write_text(json.dumps(HEADER | {"strobe_trace": 2}) + "\n")
    refused(run("trace", "verify", tmp_path / "file"), "version 2")


def test_the_trace_of_a_simulation_is_consistent(tmp_path):
    file = tmp_path / "run.jsonl"
    assert run("simulate", BANK, "--snapshots", "5", "--trace", file).code == 0
    result = run("trace", "verify", file)
    assert result.code == 0
    assert "0 violated" in result.out
    assert max(map(len, result.out.splitlines())) <= 100
