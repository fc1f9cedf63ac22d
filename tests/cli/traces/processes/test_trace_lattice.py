"""`strobe trace lattice`: counting, possibly and definitely, their exit codes, and invalid questions."""

import json
import shlex

import pytest
from tests.cli.command_line import BANK, REPOSITORY, refused, run

from strobe.causality.lattice import detection, paths

HEADER = {
    "strobe_trace": 1,
    "processes": ["a", "b"],
    "channels": [{"id": "a->b", "source": "a", "target": "b"}],
}
LINES = [
    {"kind": "internal", "process": "a", "position": 1, "name": "start", "payload": {"busy": True}},
    {"kind": "send", "process": "a", "position": 1, "channel": "a->b", "ordinal": 1},
    {"kind": "internal", "process": "a", "position": 2, "payload": {"busy": False}},
    {"kind": "internal", "process": "b", "position": 1, "payload": {"busy": True, "task": {"id": 7}}},
    {"kind": "receive", "process": "b", "position": 2, "channel": "a->b", "ordinal": 1, "payload": {"busy": False}},
]


@pytest.fixture
def trace(tmp_path):
    file = tmp_path / "run.jsonl"
    file.write_text("".join(json.dumps(line) + "\n" for line in (HEADER, *LINES)))
    return file


def test_consistent_cuts_are_counted(trace):
    result = run("trace", "lattice", trace, "--count")
    assert (result.code, result.out) == (0, "8 consistent cuts\n")


def test_a_count_that_stops_early_is_undecided(trace):
    result = run("trace", "lattice", trace, "--count", "--max-cuts", "5")
    assert (result.code, result.out[:9]) == (4, "undecided")
    assert run("trace", "lattice", trace, "--count", "--max-cuts", "5", "--json").document == {
        "trace": str(trace),
        "cuts": 5,
        "complete": False,
    }


def test_possibly_shows_a_cut_and_the_values_there(trace):
    result = run("trace", "lattice", trace, "--possibly", "a.busy and b.busy")
    assert result.code == 0
    assert "possibly: yes" in result.out
    assert "b.busy = true" in result.out
    found = run("trace", "lattice", trace, "--possibly", "b.task.id == 7 and in_flight(`a->b`) == 1", "--json").document
    assert (found["answer"], found["verdict"], found["cut"]) == (True, "holds", {"a": 1, "b": 1})
    assert found["values"] == {"b.task.id": 7, 'in_flight("a->b")': 1}


def test_a_predicate_that_never_holds_is_exit_code_1(trace):
    result = run("trace", "lattice", trace, "--possibly", "received(`a->b`) > sent(`a->b`)")
    assert (result.code, "no: it holds at no consistent cut" in result.out) == (1, True)


def test_definitely_shows_an_order_in_which_it_never_holds(trace):
    result = run("trace", "lattice", trace, "--definitely", "a.busy and b.busy")
    assert result.code == 1
    assert "an observer may never see it hold" in result.out
    assert "of a\n" in result.out
    found = run("trace", "lattice", trace, "--definitely", "a.busy and b.busy", "--json").document
    assert len(found["path"]) == 4
    assert run("trace", "lattice", trace, "--definitely", "in_flight() == 1").code == 0


def test_without_an_example_order_in_time_the_answer_is_still_given(trace, monkeypatch):
    monkeypatch.setattr(paths, "_GUARDED_MAX", 0)
    result = run("trace", "lattice", trace, "--definitely", "a.busy and b.busy")
    assert result.code == 1
    output = " ".join(result.out.split())
    assert output == (
        "definitely: no: an observer may never see it hold; this is certain, but no example was found in time"
    )
    found = run("trace", "lattice", trace, "--definitely", "a.busy and b.busy", "--json").document
    assert (found["answer"], found["verdict"], found["path"]) == (False, "does not hold", None)


def test_a_search_that_stops_early_is_exit_code_4(trace):
    result = run("trace", "lattice", trace, "--possibly", "events(a) + events(b) == 9", "--max-cuts", "3")
    assert (result.code, "undecided after 3 cuts; --max-cuts N examines more" in result.out) == (4, True)
    found = run("trace", "lattice", trace, "--possibly", "events() == 9", "--max-cuts", "3", "--json").document
    assert (found["answer"], found["stopped_by"]) == (None, "max-cuts")


def test_a_search_stopped_by_memory_is_not_advised_to_raise_max_cuts(trace, monkeypatch):
    monkeypatch.setattr(paths, "LEVEL_BYTES_MAX", 16)  # one cut of two processes
    monkeypatch.setattr(detection, "_DIVE_CUTS_MAX", 1)
    result = run("trace", "lattice", trace, "--definitely", "events() == 4")
    assert result.code == 4
    output = " ".join(result.out.split())
    assert "undecided after 1 cut: the next level of the lattice needs more than 1.1 GB of memory" in output
    assert "--max-cuts" not in output
    found = run("trace", "lattice", trace, "--definitely", "events() == 4", "--json").document
    assert (found["answer"], found["stopped_by"]) == (None, "memory")
    # With a small --max-cuts, that limit is reached first.
    stopped = run("trace", "lattice", trace, "--definitely", "events() == 4", "--max-cuts", "2")
    assert (stopped.code, "--max-cuts N examines more" in stopped.out) == (4, True)


@pytest.mark.parametrize(
    ("question", "problem"),
    [
        ([], "ask one question"),
        (["--count", "--possibly", "true"], "ask one question"),
        (["--possibly", "a.busy ="], "wrong at column 8"),
        (["--possibly", "a.buzy"], "did you mean 'busy'?"),
        (["--possibly", "c.busy"], "no process 'c'; there are: a, b"),
        (["--possibly", "sent(ab) == 1"], "no channel 'ab'; did you mean sent(\"a->b\")?"),
        (["--possibly", "in_flight(a->b) == 1"], 'write in_flight("a->b")'),
        (["--definitely", ""], "a value is missing here"),
    ],
)
def test_an_invalid_question_is_refused(trace, question, problem):
    refused(run("trace", "lattice", trace, *question), problem)


def test_the_documentation_runs(tmp_path, monkeypatch):
    text = (REPOSITORY / "docs" / "lattice.md").read_text()
    commands = [line for line in text.split("```")[1].splitlines() if line.startswith("strobe ")]
    assert len(commands) == 5
    monkeypatch.chdir(tmp_path)
    (tmp_path / "examples").symlink_to(REPOSITORY / "examples")
    results = [run(*shlex.split(command)[1:]) for command in commands]
    assert [result.code for result in results] == [0, 0, 0, 0, 1]
    assert f"| {results[1].out.split()[0]} |" in text


def test_states_come_from_a_replay_of_a_full_trace(tmp_path):
    trace = tmp_path / "run.jsonl"
    simulated = run("simulate", BANK, "--faults", "none", "--snapshots", "1", "--trace", trace, "--trace-level", "full")
    assert simulated.code == 0
    everything = "a.balance + b.balance + c.balance + d.balance"
    assert run("trace", "lattice", trace, "--system", BANK, "--possibly", f"{everything} > 800").code == 1
    assert run("trace", "lattice", trace, "--system", BANK, "--definitely", f"{everything} < 800").code == 0
    refused(
        run("trace", "lattice", trace, "--possibly", "a.balance == 200"),
        "has no 'balance' of a",
        "replay a full trace: --system",
    )
