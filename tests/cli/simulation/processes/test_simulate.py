"""`strobe simulate`: its report of a run, and its errors."""

import re
import shlex
import signal

import pytest
from tests.cli.command_line import BANK, REPOSITORY, refused, run

from strobe.causality.cuts import check_cuts
from strobe.causality.trace import read_trace
from strobe.simulation import context
from strobe.storage import Store

PROCESS = """
import msgspec
from strobe import Channel, Process, System

class Counter(Process):
    def __init__(self): self.count = 0
    def start(self, ctx): ctx.set_timer("tick", 0.01)
    def timer(self, ctx, name):
        self.count += 1
        for channel in ctx.outputs: ctx.send(channel, {"count": self.count})
        ctx.set_timer("tick", 0.01)
    def receive(self, ctx, channel, message): pass
    def capture(self): return {"count": self.count}
    def restore(self, state): self.count = state["count"]

def pair(kind, **options):
    return System({"a": kind(), "b": kind()}, [Channel("a", "b"), Channel("b", "a")], **options)

class Number(msgspec.Struct): value: int
"""


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    """Work in an empty directory."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def simulate(here, text, *options):
    """Run the system `mine` of a file that has `text` after PROCESS."""
    (here / "mine.py").write_text(PROCESS + text)
    return run("simulate", "mine.py:mine", "--snapshots", "5", *options)


def lines_before(text):
    return (PROCESS + text).count("\n")


def test_a_run_prints_its_seed_faults_and_totals(here):
    result = run("simulate", BANK, "--seed", "3", "--snapshots", "5")
    assert result.code == 0
    lines = result.out.splitlines()
    assert lines[0].startswith("seed 3, faults: delay_us_min=100 delay_us_max=20000 partition_every_us=200000 ")
    assert lines[0].endswith(" initiator_every_us=250000 rollback_every_us=350000")
    assert [line.split()[0] for line in lines[1:]] == ["events", "snapshots", "faults", "checkers"]
    assert "9 passed: cut-consistent, proof-verifies" in lines[4]
    assert result.err == ""


@pytest.mark.parametrize("name", ["wordcount", "wordcount_unaligned", "wordcount_timed"])
def test_the_word_count_of_the_documentation_runs_under_all_faults(here, name):
    (here / "examples").symlink_to(REPOSITORY / "examples")
    text = (REPOSITORY / "docs" / "barriers.md").read_text("utf-8")
    (command,) = [line for line in text.splitlines() if line.startswith("strobe simulate ")]
    assert "examples/wordcount.py:wordcount " in command
    result = run(*shlex.split(command.replace(":wordcount ", f":{name} "))[1:])
    assert (result.code, result.err) == (0, "")
    assert "9 passed: cut-consistent, proof-verifies" in result.out


def test_json_is_one_document_and_the_rest_is_on_stderr(here):
    result = simulate(here, "print('loaded')\nmine = pair(Counter)", "--json", "--seed", "4")
    assert result.code == 0
    assert result.document["seed"] == 4
    assert result.document["violations"] == []
    assert result.document["faults"]["delay_us_max"] == 20000
    assert result.document["unchecked"] == ["conservation"]
    assert "loaded" in result.err
    assert "seed 4, faults:" in result.err


def test_an_unchecked_property_is_reported(here):
    result = simulate(here, "mine = pair(Counter)")
    assert result.code == 0
    assert "8 passed" in result.out
    assert "conservation was not checked: the system has neither `conserved` nor `invariants`" in result.out


@pytest.mark.parametrize("declared", ["invariants=['a.count >= 0']", "conserved=lambda states, messages: 0"])
def test_a_system_with_an_invariant_or_a_conserved_value_has_nothing_unchecked(here, declared):
    result = simulate(here, f"mine = pair(Counter, {declared})")
    assert result.code == 0
    assert "9 passed" in result.out
    assert "was not checked" not in result.out


def test_the_same_seed_gives_the_same_run(here):
    first, second, other = (run("simulate", BANK, "--seed", seed, "--json").document for seed in ("5", "5", "6"))
    del first["events_per_second"], second["events_per_second"]
    assert first == second
    assert first["events"] != other["events"]


def test_several_seeds_are_summed_up(here):
    result = run("simulate", BANK, "--seed", "3", "--seeds", "4", "--snapshots", "2", "--json")
    singles = [
        run("simulate", BANK, "--seed", str(seed), "--snapshots", "2", "--json").document for seed in range(3, 7)
    ]
    assert result.document["runs"] == 4
    assert result.document["events"] == sum(single["events"] for single in singles)
    assert result.document["committed"] == sum(single["committed"] for single in singles)


LEAKING = "mine = pair(Counter, conserved=lambda states, messages: sum(s['count'] for s in states.values()))"


def test_a_violation_ends_with_1_and_a_command_to_reproduce_it(here):
    result = simulate(here, LEAKING, "--seed", "9", "--seeds", "3", "--faults", "delays,crashes")
    assert result.code == 1
    assert "violations with seed 9" in result.out
    assert "conservation: 000001-00000001-coordinator the conserved quantity is" in result.out
    command = result.out.splitlines()[-1].strip()
    assert command == "strobe simulate mine.py:mine --seed 9 --faults delays,crashes --snapshots 5"
    again = run(*shlex.split(command)[1:])
    assert again.code == 1
    assert again.out.splitlines()[-8:] == result.out.splitlines()[-8:]


def test_G1_invariants_are_checked_at_every_snapshot(here):
    declared = """
def counts(snapshot): return snapshot.states["a"]["count"] < 9 or f"a counts {snapshot.states['a']['count']}"
mine = pair(Counter, invariants=[counts, "b.count < 9", "a.count >= 0"])
"""
    result = simulate(here, declared, "--seed", "2", "--faults", "delays")
    assert result.code == 1
    found = result.out.split("run it again")[0]
    assert re.search(r"invariants: 000001-0000000\d-coordinator counts: a counts \d+ \(at ", found)
    assert re.search(r"invariants: 000001-0000000\d-coordinator b\.count < 9: b\.count = \d+ \(at ", found)
    assert "a.count >= 0" not in found
    sound = simulate(here, "mine = pair(Counter, invariants=['a.count >= 0'])")
    assert (sound.code, "9 passed" in sound.out, ", invariants, " in sound.out) == (0, True, True)


def test_an_invariant_that_fails_in_a_run_is_named_with_its_place(here):
    odd = "def odd(snapshot): return snapshot.states['a']['count'] < 1 or 1 // 0\n"
    result = simulate(here, odd + "mine = pair(Counter, invariants=[odd])")
    assert result.code == 1
    error = " ".join(result.err.split())
    assert "the invariant odd failed: ZeroDivisionError: integer division or modulo by zero (mine.py:20, in odd())" in (
        error
    )


def test_a_violation_in_json_has_the_command_too(here):
    document = simulate(here, LEAKING, "--json").document
    assert document["violations"][0]["checker"] == "conservation"
    assert document["reproduce"] == "strobe simulate mine.py:mine --seed 1 --faults all --snapshots 5"


FAILURES = {
    "receive": (
        "class Bad(Counter):\n    def receive(self, ctx, channel, message): raise ValueError('no room')\n",
        "(receive, message 1 on {channel}): ValueError: no room (mine.py:{line}, in receive())",
    ),
    "timer": (
        "class Bad(Counter):\n    def timer(self, ctx, name): raise OSError('full')\n",
        "(timer tick): OSError: full (mine.py:{line}, in timer())",
    ),
    "exit": (
        "class Bad(Counter):\n    def timer(self, ctx, name): raise SystemExit(0)\n",
        "(timer tick): SystemExit: 0 (mine.py:{line}, in timer())",
    ),
    **{
        error: (
            f"import asyncio\nclass Odd(BaseException): pass\nclass Bad(Counter):\n"
            f"    def timer(self, ctx, name): raise {error}\n",
            f"(timer tick): {error.removeprefix('asyncio.').removesuffix('()')} (mine.py:{{line}}, in timer())",
        )
        for error in ("GeneratorExit()", "asyncio.CancelledError()", "StopIteration()", "MemoryError()", "Odd()")
    },
    "start": (
        "class Bad(Counter):\n    def start(self, ctx): ctx.send('x->y', 1)\n",
        "(start): process '{channel[0]}' sends on 'x->y', which is not an output of it; outputs: {channel} (mine.py:",
    ),
    "send": (
        "class Bad(Counter):\n    def start(self, ctx): ctx.send(ctx.outputs[0], object())\n",
        "(start): the message that process '{channel[0]}' sends on '{channel}' cannot be encoded: object: object (",
    ),
    "capture": (
        "class Bad(Counter):\n    def capture(self): return self\n",
        "process 'a': Bad.capture (mine.py:{line}): what capture() of process a returned cannot be encoded: Bad: Bad",
    ),
    "capture returns nothing": (
        "class Bad(Counter):\n    def capture(self): {'count': self.count}\n",
        "returned None; return its state: a msgspec struct, a KeyedState or bytes",
    ),
    "no capture": (
        "class Bad(Process):\n    def start(self, ctx): pass\n",
        "processes 'a', 'b': Bad has no capture(): return its state, or b'' if it has none",
    ),
}


@pytest.mark.parametrize("name", FAILURES)
def test_a_handler_that_raises_is_named_with_process_event_file_and_line(here, name):
    text, expected = FAILURES[name]
    result = simulate(here, text + "mine = pair(Bad)")
    assert result.code == 1
    line = lines_before(text)
    assert any(expected.format(line=line, channel=channel) in result.error for channel in ("a->b", "b->a"))
    assert "correct it, then run it again: strobe simulate mine.py:mine --seed 1" in result.error


RESTORES = {
    "none": (
        "    restore = Process.restore\n",
        "Bad has capture() but no restore(): a rollback could not put its state back",
    ),
    "raises": (
        "    def restore(self, state): self.count = state.count\n",
        "AttributeError: 'dict' object has no attribute 'count' (mine.py:{line}, in restore())",
    ),
    "forgets": (
        "    def restore(self, state): pass\n",
        "Bad.restore (mine.py:{line}), after event",
    ),
}


@pytest.mark.parametrize("name", RESTORES)
def test_E13_a_mistake_in_restore_is_named_with_file_and_line_by_default(here, name):
    text, expected = RESTORES[name]
    text = f"class Bad(Counter):\n{text}"
    result = simulate(here, text + "mine = pair(Bad)")
    assert result.code == 1
    assert expected.format(line=lines_before(text)) in result.error
    assert "bug in Strobe" not in result.error


LATER = """
class Late(Counter):
    def restore(self, state):
        self.count = state["count"]
        if self.count > 2: raise ValueError("too late")
"""


def test_a_restore_that_fails_in_a_rollback_is_the_users_mistake(here, monkeypatch):
    monkeypatch.setattr("strobe.self_check.Restores.check", lambda *_: None)  # so that a rollback finds it
    result = simulate(here, LATER + "mine = pair(Late)", "--faults", "rollbacks", "--snapshots", "40")
    assert result.code == 1
    assert "failed in restore() of 00" in result.error
    assert f"ValueError: too late (mine.py:{lines_before(LATER)}, in restore())" in result.error


def test_a_process_that_cannot_be_copied_is_partly_checked(here):
    locked = "class Locked(Counter):\n    def __init__(self):\n        import threading\n"
    locked += "        super().__init__(); self.lock = threading.Lock()\n"
    result = simulate(here, locked + "mine = pair(Locked)")
    assert result.code == 0
    assert "no rollbacks among the faults: process 'a' cannot be copied" in result.err
    assert "not checked: Locked.restore of process 'a' (it cannot be copied: TypeError: cannot pickle" in result.err


def test_a_message_of_an_undeclared_type_is_named(here):
    result = simulate(here, "mine = pair(Counter, messages=[Number])")
    assert result.code == 1
    assert "sends a message of type dict on 'b->a', which is not one of the system's message types" in result.error
    assert "missing required field `value`" in result.error


def test_a_conserved_function_that_raises_is_named(here):
    result = simulate(here, "mine = pair(Counter, conserved=lambda states, messages: 1 / len(states['a']['count']))")
    assert result.code == 1
    assert "TypeError: object of type 'int' has no len()" in result.error


def test_with_a_trace_all_faults_are_without_rollbacks(here):
    traced = run("simulate", BANK, "--snapshots", "3", "--trace", "run.jsonl", "--json").document
    assert traced["faults"]["rollback_every_us"] == 0
    assert run("simulate", BANK, "--snapshots", "3", "--json").document["faults"]["rollback_every_us"] > 0


def test_unknown_faults_are_refused(here):
    refused(run("simulate", BANK, "--faults", "gremlins"), "unknown faults gremlins; choose: none, all, delays")


def test_a_store_is_kept_and_replaced_by_the_next_simulation_only(here):
    words = ("simulate", BANK, "--snapshots", "2", "--faults", "none", "--store", "kept")
    assert run(*words).code == 0
    first = Store.open("kept")
    assert len(first.list()) >= 2
    assert run(*words, "--seed", "2").code == 0
    assert Store.open("kept").header.store != first.header.store


@pytest.mark.parametrize("content", ["file", "directory", "store", "damaged"])
def test_only_the_store_of_a_simulation_is_replaced(here, content):
    target = here / "precious"
    if content == "file":
        target.write_text("mine")
    elif content == "directory":
        target.mkdir()
        (target / "thesis.tex").write_text("mine")
    else:
        Store.create(target)
        if content == "damaged":
            (target / "strobe.json").write_text("{}")
    before = sorted((path, path.is_file() and path.read_bytes()) for path in (target, *target.rglob("*")))
    refused(run("simulate", BANK, "--store", "precious"), "precious")
    assert sorted((path, path.is_file() and path.read_bytes()) for path in (target, *target.rglob("*"))) == before


def test_a_leftover_with_a_foreign_file_is_not_replaced(here):
    words = ("simulate", BANK, "--snapshots", "1", "--store", "kept")
    assert run(*words).code == 0
    (here / "kept" / "notes.txt").write_text("mine")
    refused(run(*words), "kept is not the store of an earlier `strobe simulate`")
    assert (here / "kept" / "notes.txt").read_text() == "mine"


@pytest.mark.parametrize("level", ["ordinals", "full"])
def test_a_trace_is_written(here, level):
    result = run("simulate", BANK, "--snapshots", "3", "--trace", "run.jsonl", "--trace-level", level)
    assert result.code == 0
    trace = read_trace("run.jsonl")
    assert trace.header.system == BANK
    assert all(verdict.verdict != "violated" for verdict in check_cuts(trace))


def test_a_trace_that_cannot_be_written_is_refused_before_the_run(here):
    refused(
        run("simulate", BANK, "--trace", "no/where/run.jsonl"),
        "--trace no/where/run.jsonl: its directory does not exist",
    )
    refused(run("simulate", BANK, "--trace", "t", "--trace-level", "some"), "ordinals or full, not 'some'")


def test_store_and_trace_keep_one_run(here):
    refused(run("simulate", BANK, "--seeds", "2", "--store", "s"), "--store and --trace keep one run")


RUNAWAYS = {
    "sends": "ctx.send(ctx.outputs[0], 1)",
    "emits": "ctx.emit(1)",
    "sets timers": "ctx.set_timer('again', 1)",
    "asks for snapshots": "ctx.snapshot()",
}


@pytest.mark.parametrize("what", RUNAWAYS)
def test_a_handler_in_an_endless_loop_is_stopped_and_named(here, monkeypatch, what):
    monkeypatch.setattr(context, "EVENT_BYTES_MAX", 1 << 22)
    text = f"class Bad(Counter):\n    def timer(self, ctx, name):\n        while True: {RUNAWAYS[what]}\n"
    result = simulate(here, text + "mine = pair(Bad)")
    assert result.code == 1
    line = lines_before(text)
    assert "has sent, emitted and set timers for more than 4,194,304 bytes in one event" in result.error
    assert f"in Bad.timer() at mine.py:{line - 1};" in result.error
    assert f"(mine.py:{line}, in timer())" in result.error


def test_ctrl_c_during_a_handler_is_not_a_failure_of_it(here):
    text = "class Bad(Counter):\n    def timer(self, ctx, name): raise KeyboardInterrupt\n"
    # As in a separate program: in another test of this process, Spark leaves its own signal handler behind.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        assert simulate(here, text + "mine = pair(Bad)").code == 130
    finally:
        signal.signal(signal.SIGINT, before)
