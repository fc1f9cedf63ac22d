"""The judge process from the coordinator's side: killed if it hangs, restarted, and never waited for (E12)."""

import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec
import pytest
from tests.cli.command_line import simulated_store
from tests.runtime.link_ends import run, until

from strobe.cli.live.judge_worker import command_of
from strobe.runtime.judging import judge_process as judges
from strobe.runtime.judging.judge_process import Judge
from strobe.runtime.judging.questions import Question
from strobe.runtime.messages.verdicts import ConditionVerdict
from strobe.runtime.settings import CoordinatorSettings
from strobe.storage import Store

READY = 'print(\'{"conditions": ["conserved"]}\', flush=True)'
ANSWER = (
    "print(json.dumps({'snapshot': json.loads(line)['snapshot'],"
    " 'verdicts': {'conserved': {'verdict': 'holds', 'found': str(os.getpid())}}}), flush=True)"
)
LOOP = f"import json, os, sys, time\n{READY}\nfor line in sys.stdin:\n    {{body}}\n    {ANSWER}\n"
GIB = 1 << 30


class Court:
    """A judge, and the results for the snapshots."""

    def __init__(self, command: list[str], timeout_s: float) -> None:
        self.verdicts: dict[str, ConditionVerdict] = {}
        self.skipped = 0
        self.judge = Judge(command, ["conserved"], timeout_s, self._note, self._skip)

    def _note(self, snapshot: str, verdicts: Mapping[str, ConditionVerdict]) -> None:
        self.verdicts[snapshot] = verdicts["conserved"]

    def _skip(self) -> None:
        self.skipped += 1

    async def verdict(self, question: Question) -> ConditionVerdict:
        self.judge.put(question)
        await until(lambda: question.snapshot in self.verdicts)
        return self.verdicts[question.snapshot]


@asynccontextmanager
async def court(command: list[str], timeout_s: float = 60.0) -> AsyncIterator[Court]:
    opened = Court(command, timeout_s)
    opened.judge.start()
    try:
        yield opened
    finally:
        await opened.judge.close()
        assert opened.judge.pid is None


def scripted(body: str = "pass", script: str = LOOP) -> list[str]:
    """Return the command of a judge that runs `script`; `body` runs for each question."""
    return [sys.executable, "-c", script.replace("{body}", body)]


def question(number: int) -> Question:
    return Question(f"s{number}", number)


@pytest.fixture(autouse=True)
def short_back_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(judges, "PAUSE_S_MIN", 0.01)
    monkeypatch.setattr(judges, "KILL_AFTER_S", 0.0)


def test_older_snapshots_waiting_for_the_judge_are_skipped_and_counted() -> None:
    async def scenario() -> None:
        async with court(scripted()) as opened:
            for number in range(10):
                opened.judge.put(question(number))
            assert opened.judge.pending
            await until(lambda: not opened.judge.pending)
            assert "s9" in opened.verdicts
            assert len(opened.verdicts) + opened.skipped == 10
            assert (await opened.verdict(question(10))).verdict == "holds"

    run(scenario())


def test_a_judge_that_hangs_is_killed_and_replaced() -> None:
    async def scenario() -> None:
        body = "if 's1' in line: time.sleep(1000)"
        async with court(scripted(body)) as opened:
            first = await opened.verdict(question(0))
            opened.judge._timeout_s = 0.1
            hung = await opened.verdict(question(1))
            assert hung.verdict == "error"
            assert hung.problem.startswith("it took longer than verdict_timeout_s = 0.1 s, and was ended")
            opened.judge._timeout_s = 60.0
            last = await opened.verdict(question(2))
            assert (first.verdict, last.verdict) == ("holds", "holds")
            assert first.found != last.found

    run(scenario())


def test_a_judge_that_is_to_reload_is_replaced_before_the_next_question() -> None:
    async def scenario() -> None:
        async with court(scripted()) as opened:
            first = await opened.verdict(question(0))
            opened.judge.reload()
            second, third = await opened.verdict(question(1)), await opened.verdict(question(2))
            assert {one.verdict for one in (first, second, third)} == {"holds"}
            assert first.found != second.found == third.found

    run(scenario())


def test_a_killed_judge_leaves_its_snapshot_undecided_and_restarts() -> None:
    async def scenario() -> None:
        async with court(scripted("if 's1' in line: time.sleep(1000)")) as opened:
            await opened.verdict(question(0))
            opened.judge.put(question(1))
            await until(lambda: opened.judge._next is None)
            assert opened.judge.pid is not None
            os.kill(opened.judge.pid, signal.SIGKILL)
            await until(lambda: "s1" in opened.verdicts)
            assert opened.verdicts["s1"] == ConditionVerdict(
                "undecided", problem="the judge's process ended by SIGKILL"
            )
            assert (await opened.verdict(question(2))).verdict == "holds"

    run(scenario())


@pytest.mark.parametrize(
    ("script", "problem"),
    [
        ("raise SystemExit(7)", "the judge's process ended with exit code 7"),
        ("print('hello', flush=True); import time; time.sleep(1000)", "the judge's process begins with something else"),
        (f"{READY}; print('hello', flush=True); input(); input()", "the judge's process answers something else"),
        (f"{READY}; print('x' * 3_000_000, flush=True); input(); input()", "the judge's process answers something"),
        (
            f'{READY}; print(\'{{"snapshot": "other", "verdicts": {{}}}}\', flush=True); input(); input()',
            "the judge's process answers for snapshot other",
        ),
    ],
)
def test_a_judge_with_invalid_answers_leaves_snapshots_undecided(script: str, problem: str) -> None:
    async def scenario() -> None:
        async with court(scripted(script=script)) as opened:
            for number in range(2):
                verdict = await opened.verdict(question(number))
                assert verdict.verdict == "undecided"
                assert verdict.problem.startswith(problem)

    run(scenario())


def test_a_judge_that_cannot_be_started_leaves_snapshots_undecided() -> None:
    async def scenario() -> None:
        async with court(["/no/such/program"]) as opened:
            verdict = await opened.verdict(question(0))
            assert verdict.verdict == "undecided"
            assert "cannot be started: " in verdict.problem

    run(scenario())


# The real judge process, on a store with at least three snapshots of the bank.

SYSTEM = """
import os, sys, time
from bank import bank as honest
from strobe import System

def conserved(states, messages):
    {body}
    return sum(state.balance for state in states.values()) + sum(message.amount for message in messages)

def no_debt(snapshot):
    {invariant}

invariants = [no_debt, "a.balance >= 0"]
mine = System(honest.processes, honest.channels, honest.messages, conserved=conserved, invariants=invariants)
"""


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return simulated_store(tmp_path_factory.mktemp("simulated"))


def questions(store: Path) -> list[Question]:
    return [Question(name, position) for position, name, _ in Store.open(store).list()]


def worker(
    directory: Path, store: Path, body: str = "pass", timeout_s: float = 60.0, invariant: str = "return True"
) -> list[str]:
    """Return the command of a judge for the bank, whose `conserved` runs `body` first."""
    bank = Path(__file__).parents[4] / "examples" / "bank.py"
    (directory / "bank.py").write_bytes(bank.read_bytes())
    (directory / "mine.py").write_text(SYSTEM.replace("{body}", body).replace("{invariant}", invariant))
    settings = CoordinatorSettings(verdict_bytes_max=4 * GIB, verdict_timeout_s=timeout_s)
    return command_of(f"{directory / 'mine.py'}:mine", str(store), settings)


def judged(command: list[str], asked: list[Question], timeout_s: float = 60.0) -> list[ConditionVerdict]:
    async def scenario() -> list[ConditionVerdict]:
        async with court(command, timeout_s) as opened:
            return [await opened.verdict(one) for one in asked]

    return run(scenario())


def test_the_judge_process_compares_snapshots_from_the_store(tmp_path: Path, store: Path) -> None:
    verdicts = judged(worker(tmp_path, store), questions(store))
    assert verdicts == [ConditionVerdict("holds", "800", "800")] * len(questions(store))
    assert len(verdicts) >= 3


@pytest.mark.parametrize(
    ("body", "problem"),
    [
        ("raise ValueError('no')", "conserved: fails: ValueError: no ({file}:7, in conserved())"),
        ("sys.exit(0)", "conserved: fails: SystemExit: 0 ({file}:7, in conserved())"),
        ("raise KeyboardInterrupt", "conserved: fails: KeyboardInterrupt ({file}:7, in conserved())"),
        ("input()", "conserved: fails: EOFError: EOF when reading a line ({file}:7, in conserved())"),
        ("return float('nan')", "the value nan does not equal itself, so nothing can be compared with it"),
        ("bytearray(8 << 30)", "conserved: fails: MemoryError ({file}:7, in conserved())"),
        (
            "while True: pass",
            "conserved: fails: TimeIsUp: it took longer than verdict_timeout_s = 0.3 s ({file}:7, in conserved())",
        ),
    ],
)
def test_a_function_that_fails_in_any_way_is_an_error(tmp_path: Path, store: Path, body: str, problem: str) -> None:
    timeout_s = 0.3 if "while" in body else 60.0
    (verdict,) = judged(worker(tmp_path, store, body, timeout_s), questions(store)[:1])
    assert verdict == ConditionVerdict("error", problem=problem.format(file=tmp_path / "mine.py"))


def all_verdicts(
    command: list[str], asked: list[Question], timeout_s: float = 60.0
) -> list[dict[str, ConditionVerdict]]:
    """Return the verdicts on every condition, snapshot by snapshot."""
    found: list[dict[str, ConditionVerdict]] = []

    async def scenario() -> None:
        conditions = ["conserved", "no_debt", "a.balance >= 0"]
        judge = Judge(command, conditions, timeout_s, lambda _, one: found.append(dict(one)), lambda: None)
        judge.start()
        try:
            for number, one in enumerate(asked, 1):
                judge.put(one)
                await until(lambda number=number: len(found) == number)
        finally:
            await judge.close()

    run(scenario())
    return found


def test_E12_a_function_that_loops_is_named_and_the_other_conditions_are_judged(tmp_path: Path, store: Path) -> None:
    command = worker(tmp_path, store, timeout_s=1.0, invariant="while True: pass")
    (verdicts,) = all_verdicts(command, questions(store)[:1])
    assert [verdicts[name].verdict for name in ("conserved", "a.balance >= 0")] == ["holds", "holds"]
    assert verdicts["no_debt"].verdict == "error"
    place = f"({tmp_path / 'mine.py'}:11, in no_debt())"
    assert verdicts["no_debt"].problem.endswith(f"it took longer than verdict_timeout_s = 1 s {place}")


def test_a_function_that_ends_its_process_does_not_keep_others_from_being_judged(tmp_path: Path, store: Path) -> None:
    first, second = all_verdicts(worker(tmp_path, store, invariant="os._exit(5)"), questions(store)[:2])
    ended = ConditionVerdict("undecided", problem="the judge's process ended with exit code 5")
    behind = ConditionVerdict("undecided", problem="not evaluated: the judge's process ended over no_debt")
    assert (first["conserved"].verdict, first["no_debt"], first["a.balance >= 0"]) == ("holds", ended, behind)
    assert (second["conserved"].verdict, second["no_debt"], second["a.balance >= 0"].verdict) == (
        "holds",
        ended,
        "holds",
    )


def test_output_of_a_function_is_not_mistaken_for_an_answer(
    tmp_path: Path, store: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    body = "print('{}', flush=True); os.write(1, b'raw'); os.system('echo from a shell')"
    (verdict,) = judged(worker(tmp_path, store, body), questions(store)[:1])
    assert verdict.verdict == "holds"
    printed = capfd.readouterr()
    assert printed.out == ""
    assert all(text in printed.err for text in ("{}", "raw", "from a shell"))


def test_a_function_that_ends_its_process_leaves_the_snapshot_undecided(tmp_path: Path, store: Path) -> None:
    verdicts = judged(worker(tmp_path, store, "os._exit(5)"), questions(store)[:2])
    assert verdicts == [ConditionVerdict("undecided", problem="the judge's process ended with exit code 5")] * 2


def test_a_missing_snapshot_is_undecided_and_the_judge_continues(tmp_path: Path, store: Path) -> None:
    first, *_ = questions(store)
    missing = Question("000001-00000099-coordinator", 999)
    wrong = Question("000001-00000098-coordinator", first.position)
    verdicts = judged(worker(tmp_path, store), [missing, wrong])
    assert [one.verdict for one in verdicts] == ["undecided", "undecided"]
    assert "is missing" in verdicts[0].problem
    assert "is the commit of" in verdicts[1].problem


def test_the_judge_process_ends_with_its_coordinator(tmp_path: Path, store: Path) -> None:
    command = worker(tmp_path, store, f"open({str(tmp_path / 'busy')!r}, 'w').close()\n    while True: pass")
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdout.readline()
        process.stdin.write(msgspec.json.encode(questions(store)[0]) + b"\n")
        process.stdin.flush()

        async def busy() -> None:
            await until((tmp_path / "busy").exists)

        run(busy())
        process.stdin.close()
        assert process.wait(60) == 0
