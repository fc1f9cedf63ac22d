"""Verdicts are shown by a running coordinator, and nothing waits for a judge (E12)."""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.runtime.api.sockets.test_routes import served
from tests.runtime.fake_nodes import Quiet, Running, both_alive, committed

from strobe.process import Channel, System
from strobe.runtime.messages.api_documents import COMMITTED

# A judge: the first snapshot holds, the second is violated, and it hangs on the third.
SCRIPT = """
import json, sys, time
def send(document): print(json.dumps(document), flush=True)
send({"conditions": ["conserved"]})
verdicts = [{"verdict": "holds", "expected": "8", "found": "8"}, {"verdict": "violated", "expected": "8", "found": "7"}]
for line in sys.stdin:
    if not verdicts: time.sleep(1000)
    send({"snapshot": json.loads(line)["snapshot"], "verdicts": {"conserved": verdicts.pop(0)}})
"""
JUDGE = [sys.executable, "-c", SCRIPT]

# A judge that answers which process it is, and whether the initial states are the reference.
NAMING = """
import json, os, sys
print(json.dumps({"conditions": ["conserved"]}), flush=True)
for line in sys.stdin:
    asked = json.loads(line)
    verdict = {"verdict": "holds", "expected": str(asked["initial"]), "found": str(os.getpid())}
    print(json.dumps({"snapshot": asked["snapshot"], "verdicts": {"conserved": verdict}}), flush=True)
"""


def system_with_condition() -> System:
    channels = [Channel("a", "b"), Channel("b", "a")]
    return System({"a": Quiet(), "b": Quiet()}, channels, conserved=lambda states, messages: 8)


def test_E12_verdicts_are_in_status_documents_metrics_and_log(tmp_path: Path) -> None:
    async def scenario(coordinator: Running, asking: Callable[..., Any]) -> None:
        nodes = await both_alive(coordinator)
        names = []
        for count in (1, 2):
            names.append(await committed(coordinator, *nodes))
            await coordinator.until(lambda count=count: judged(coordinator) == count)
        status = (await asking("GET", "/v1/status")).document
        (condition,) = status["conditions"]
        assert [condition[name] for name in ("name", "holds", "violated", "pending")] == ["conserved", 1, 1, False]
        assert (condition["violation_snapshot"], condition["violation"]["found"]) == (names[1], "7")
        expected = [
            {"verdict": "holds", "expected": "8", "found": "8"},
            {"verdict": "violated", "expected": "8", "found": "7"},
        ]
        assert [one["verdicts"]["conserved"] for one in status["finished"]] == expected
        listed = (await asking("GET", "/v1/snapshots")).document["snapshots"]
        assert [one["verdicts"]["conserved"] for one in listed] == expected
        shown = (await asking("GET", f"/v1/snapshots/{names[1]}")).document["summary"]
        assert shown["verdicts"] == {"conserved": expected[1]}
        text = (await asking("GET", "/metrics")).text.splitlines()
        for verdict, count in {"holds": 1, "violated": 1, "error": 0, "undecided": 0}.items():
            assert f'strobe_verdicts_total{{condition="conserved",verdict="{verdict}"}} {count}.0' in text
        assert 'strobe_verdicts_skipped_total{condition="conserved"} 0.0' in text
        (logged,) = coordinator.logged("violated")
        assert [logged[name] for name in ("level", "snapshot", "found", "expected")] == ["warning", names[1], "7", "8"]

    served(scenario, tmp_path / "store", system=system_with_condition(), judge=JUDGE)


def judged(coordinator: Running) -> int:
    return sum(condition.judged for condition in coordinator.service.status().conditions)


def test_E12_nothing_waits_for_a_judge_that_hangs(tmp_path: Path) -> None:
    async def scenario(coordinator: Running, asking: Callable[..., Any]) -> None:
        nodes = await both_alive(coordinator)
        for count in (1, 2):
            await committed(coordinator, *nodes)
            await coordinator.until(lambda count=count: judged(coordinator) == count)
        for _ in range(5):
            await committed(coordinator, *nodes)
        (condition,) = coordinator.service.status().conditions
        assert condition.pending
        # The first of the five is being judged, the last waits, and the three between were skipped.
        assert (condition.judged, condition.skipped) == (2, 3)
        assert len([one for one in coordinator.coordinator.tracker.finished if one.outcome == COMMITTED]) == 7

    served(scenario, tmp_path / "store", system=system_with_condition(), judge=JUDGE)


def test_without_a_declared_condition_no_judge_is_started(tmp_path: Path) -> None:
    async def scenario(coordinator: Running, asking: Callable[..., Any]) -> None:
        await committed(coordinator, *await both_alive(coordinator))
        assert coordinator.service.status().conditions == []
        assert coordinator.service.judgement is not None
        assert coordinator.service.judgement.judge.pid is None

    served(scenario, tmp_path / "store", judge=JUDGE)


def test_E12_after_a_planned_restart_snapshots_are_judged_by_the_new_program(tmp_path: Path) -> None:
    async def scenario(coordinator: Running, asking: Callable[..., Any]) -> None:
        nodes = await both_alive(coordinator)
        found = []
        for count in (1, 2):
            await committed(coordinator, *nodes)
            await coordinator.until(lambda count=count: judged(coordinator) == count)
            (condition,) = coordinator.service.status().conditions
            found.append(condition.latest)
            coordinator.coordinator.on_successor()
        before, after = found
        assert before.found != after.found
        # The new program may have other initial states than those that the store began with.
        assert (before.expected, after.expected) == ("True", "False")

    command = [sys.executable, "-c", NAMING]
    served(scenario, tmp_path / "store", system=system_with_condition(), judge=command)
