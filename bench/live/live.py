"""The live runtime: the cost of a message, against plain framing and other libraries, and the effect of snapshots.

All compared programs are up at the same time and take turns; figures are medians of the turns.
"""

import os
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path

from bench.figures import Figure, at_least, at_most, shown
from bench.live.contest import Pair, PeerPair, StrobePair, Turn, Turns, others_cores, take_turns
from bench.live.live_systems import RELAYS
from strobe.cli.live.child import COORDINATOR
from strobe.runtime.api.client import Client
from strobe.runtime.messages.api_documents import COMMITTED

COMMAND = "python -m bench live"
_CLOSE_ROUNDS, _CLOSE_TURN_S = 30, 0.3
_ROUNDS, _TURN_S = 7, 0.7
_SNAPSHOT_ROUNDS, _SNAPSHOT_TURN_S = 7, 3.0
_GAP_ROUNDS, _GAP_TURN_S = 4, 2.0
_RING_ROUNDS, _RING_TURN_S = 7, 0.4
_VERDICT_ROUNDS, _VERDICT_TURN_S = 12, 1.5
_TAKE_TIMEOUT_S = 30.0
_BATCHES = "batches"
_SHARED = ", both on one processor"

# If a tenth matters, there are two of each pair, in many short turns, and compared pairs run directly after each other:
# on a shared machine, one turn may be off by a fifth. The difference between equal pairs is shown too.
_STROBE, _AGAIN, _PLAIN, _PLAIN_AGAIN, _TRACED, _TRACED_AGAIN = (
    "strobe",
    "strobe again",
    "plain",
    "plain again",
    "traced",
    "traced again",
)
_CLOSE_PEERS = {"pyzmq": ("zmq:single", 3), "asyncio streams": ("streams:single", 6)}
_PEERS = {
    "grpc.aio, one stream": ("grpc-stream:single", 100),
    "grpc.aio, a call each": ("grpc-calls:single", 100),
    "pyzmq, batched by hand": ("zmq:batched", None),
    "asyncio streams, batched by hand": ("streams:batched", None),
    "grpc.aio, one stream, batched by hand": ("grpc-stream:batched", None),
}


_BATCH_PEERS = {
    "pyzmq, batched by hand": ("zmq:batched", 1.0),
    "asyncio streams, batched by hand": ("streams:batched", 1.1),
}


class Snapshots(threading.Thread):
    """Takes a snapshot every `every_s`, until it is stopped."""

    def __init__(self, client: Client, every_s: float) -> None:
        super().__init__(daemon=True)
        self.committed = 0
        self.failures: list[str] = []
        self._client = client
        self._every_s = every_s
        self._stopped = threading.Event()

    def run(self) -> None:
        due_s = time.monotonic() + self._every_s / 2  # so that the number of snapshots matches the length of a turn
        while not self._stopped.wait(max(0.0, due_s - time.monotonic())):
            due_s = max(due_s + self._every_s, time.monotonic())
            taken = self._client.take(timeout_s=_TAKE_TIMEOUT_S)
            if taken.outcome == COMMITTED:
                self.committed += 1
            else:
                self.failures.append(f"{taken.id} {taken.outcome} {taken.reason}")

    def __enter__(self) -> "Snapshots":
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopped.set()
        self.join()


def _message_figures(folder: Path) -> list[Figure]:
    """The cost of a message. All pairs are up from the beginning, and take turns with those they are compared with."""
    strobe: dict[str, Pair] = {_STROBE: StrobePair(folder / "pair", "pair")}
    again: dict[str, Pair] = {_AGAIN: StrobePair(folder / "pair-again", "pair")}
    plain = {name: StrobePair(folder / name, "plain") for name in (_PLAIN, _PLAIN_AGAIN)}
    traced = {name: StrobePair(folder / name, "pair", ("--trace", "ordinals")) for name in (_TRACED, _TRACED_AGAIN)}
    close, others = _peers(folder, _CLOSE_PEERS), _peers(folder, _PEERS)
    with ExitStack() as stack:
        for pair in (strobe | again | plain | traced | close | others).values():
            stack.enter_context(pair)
        return [
            *_framing_figures(take_turns(strobe | plain | again, _CLOSE_ROUNDS, _CLOSE_TURN_S)),
            *_trace_figures(take_turns(strobe | traced | again, _CLOSE_ROUNDS, _CLOSE_TURN_S)),
            *_peer_figures(take_turns(strobe | close | again, _CLOSE_ROUNDS, _CLOSE_TURN_S), _CLOSE_PEERS),
            *_peer_figures(take_turns(strobe | others | again, _ROUNDS, _TURN_S), _PEERS),
        ]


def _batch_figures(folder: Path) -> list[Figure]:
    """The cost of a message with `send_many` and `receive_many`, against programs that batch by hand."""
    pairs: dict[str, Pair] = {_BATCHES: StrobePair(folder / "batches", "batches")}
    pairs |= {name: PeerPair(folder / kind.replace(":", "-"), kind) for name, (kind, _) in _BATCH_PEERS.items()}
    with ExitStack() as stack:
        for pair in pairs.values():
            stack.enter_context(pair)
        turns = take_turns(pairs, _CLOSE_ROUNDS, _CLOSE_TURN_S)
    batches = turns[_BATCHES]
    figures = [
        shown("messages in batches", batches.median("messages_per_s"), "messages/s", COMMAND),
        shown("messages in batches: CPU", batches.median("cpu_ns"), "ns CPU/message", COMMAND),
    ]
    for name, (_, goal) in _BATCH_PEERS.items():
        cpu, rate = (batches.against(turns[name], what) for what in ("cpu_ns", "messages_per_s"))
        figures += [
            at_most(f"CPU of a message in batches against {name}", cpu, "x", goal, COMMAND),
            shown(f"messages/s in batches against {name}", rate, "x", COMMAND),
        ]
    return figures


def _peers(folder: Path, peers: Mapping[str, tuple[str, int | None]]) -> dict[str, Pair]:
    return {name: PeerPair(folder / kind.replace(":", "-"), kind) for name, (kind, _) in peers.items()}


def _framing_figures(turns: dict[str, Turns]) -> list[Figure]:
    strobe, plain = turns[_STROBE].beside(turns[_AGAIN]), turns[_PLAIN].beside(turns[_PLAIN_AGAIN])
    same = turns[_AGAIN].against(turns[_STROBE], "cpu_ns")
    return [
        shown("messages of 100 bytes, process to process", strobe.median("messages_per_s"), "messages/s", COMMAND),
        shown("the same, the sender's part", strobe.median("source_ns"), "ns CPU/message", COMMAND),
        shown("the same, the receiver's part", strobe.median("target_ns"), "ns CPU/message", COMMAND),
        shown(
            "framing without ordinals, hash, recording: sender", plain.median("source_ns"), "ns CPU/message", COMMAND
        ),
        shown("the same, the receiver", plain.median("target_ns"), "ns CPU/message", COMMAND),
        at_most("CPU of a message against that framing", strobe.against(plain, "cpu_ns"), "x", 1.15, COMMAND),
        shown("CPU of a message against the very same once more", same, "x", COMMAND),
    ]


def _trace_figures(turns: dict[str, Turns]) -> list[Figure]:
    strobe, traced = turns[_STROBE].beside(turns[_AGAIN]), turns[_TRACED].beside(turns[_TRACED_AGAIN])
    throughput, cpu = (traced.against(strobe, what) for what in ("messages_per_s", "cpu_ns"))
    return [
        at_least("throughput with a trace of ordinals, against none", throughput, "x", 0.9, COMMAND),
        shown("CPU of a message with that trace, against none", cpu, "x", COMMAND),
    ]


def _peer_figures(turns: dict[str, Turns], peers: Mapping[str, tuple[str, int | None]]) -> list[Figure]:
    strobe = turns[_STROBE].beside(turns[_AGAIN])
    figures = []
    for name, (_, goal) in peers.items():
        peer = turns[name]
        ratio = strobe.against(peer, "messages_per_s")
        title = f"messages/s against {name}"
        figures.append(at_least(title, ratio, "x", goal, COMMAND) if goal else shown(title, ratio, "x", COMMAND))
        figures.append(shown(f"{name}: messages", peer.median("messages_per_s"), "messages/s", COMMAND))
        figures.append(shown(f"{name}: CPU", peer.median("cpu_ns"), "ns CPU/message", COMMAND))
    return figures


def _placements() -> dict[str, tuple[set[int], set[int]]]:
    """Return the processors for two programs: waking a process on another processor takes several times as long."""
    everywhere = os.sched_getaffinity(0)
    placements = {"": (everywhere, everywhere)}
    if len(everywhere) > 1:
        first, second, *_ = sorted(everywhere)
        placements |= {", a processor each": ({first}, {second}), _SHARED: ({first}, {first})}
    return placements


def _round_trip_figures(folder: Path) -> list[Figure]:
    """A message to a process that sends it back.

    The goal is for programs placed by the operating system. It sometimes puts both ends of raw sockets on one
    processor, where a wake-up is cheap, and sometimes on two. So both placements are shown as well.
    """
    figures = []
    with StrobePair(folder / "ring", "ring") as ring, PeerPair(folder / "raw", "raw") as raw:
        for where, processors in _placements().items():
            for pair in (ring, raw):
                pair.place(*processors)
            turns = take_turns({"ring": ring, "raw": raw}, _RING_ROUNDS, _RING_TURN_S)
            figures += _round_trip(where, turns["ring"], turns["raw"])
    return figures


def _round_trip(where: str, ring: Turns, raw: Turns) -> list[Figure]:
    ratio, cpu = (ring.against(raw, what) for what in ("source_value", "cpu_ns"))
    title, cpu_title = f"round trip against raw uvloop sockets{where}", f"CPU of a round trip against raw{where}"
    return [
        shown(title, ratio, "x", COMMAND) if where else at_most(title, ratio, "x", 1.5, COMMAND),
        shown(f"round trip, handler to handler{where}", ring.median("source_value") * 1e6, "us", COMMAND),
        shown(f"round trip of raw uvloop sockets{where}", raw.median("source_value") * 1e6, "us", COMMAND),
        at_most(cpu_title, cpu, "x", 3.0, COMMAND) if where == _SHARED else shown(cpu_title, cpu, "x", COMMAND),
    ]


def _watch(pair: StrobePair, every_s: float | None) -> tuple[Turn, int]:
    """Watch the pair run, with a snapshot every `every_s`; return how many were complete."""
    if every_s is None:
        return pair.watch(_SNAPSHOT_TURN_S), 0
    with Snapshots(pair.supervisor.client, every_s) as snapshots:
        turn = pair.watch(_SNAPSHOT_TURN_S)
    return turn, _count(snapshots)


def _snapshot_figures(folder: Path) -> list[Figure]:
    """The same two processes under full load: without snapshots, with one every second, with one every 100 ms."""
    ways = (None, 1.0, 0.1)
    turns = {every_s: Turns() for every_s in ways}
    committed = dict.fromkeys(ways, 0)
    with StrobePair(folder / "snapshots", "pair") as pair:
        pair.gate.open()
        for number in range(_SNAPSHOT_ROUNDS):
            first = number % len(ways)
            for every_s in ways[first:] + ways[:first]:
                turn, complete = _watch(pair, every_s)
                turns[every_s].append(turn)
                committed[every_s] += complete
    figures = []
    for every_s, goal in ((1.0, 0.95), (0.1, 0.85)):
        throughput, cpu = (turns[every_s].against(turns[None], what) for what in ("messages_per_s", "cpu_ns"))
        rate = committed[every_s] / (_SNAPSHOT_ROUNDS * _SNAPSHOT_TURN_S)
        title = f"with a snapshot every {every_s:g} s"
        figures += [
            at_least(f"throughput {title}, against none", throughput, "x", goal, COMMAND),
            # Late snapshots cost less: the throughput counts only if they were taken in time.
            at_least(f"snapshots complete, one due every {every_s:g} s", rate, "1/s", 0.9 / every_s, COMMAND),
            shown(f"CPU of a message {title}, against none", cpu, "x", COMMAND),
        ]
    return figures


def _verdict_figures(folder: Path) -> list[Figure]:
    """Four processes under full load with a snapshot every 100 ms: the cost of judging all that they declare."""
    systems = {"chain": Turns(), "judged": Turns()}
    with ExitStack() as stack:
        chains = {
            name: stack.enter_context(StrobePair(folder / f"verdicts-{name}", name, between=RELAYS)) for name in systems
        }
        started_ns = _judge_ns(chains["judged"])
        for number in range(_VERDICT_ROUNDS):
            for name in sorted(systems, reverse=bool(number % 2)):
                with Snapshots(chains[name].supervisor.client, 0.1) as snapshots:
                    systems[name].append(chains[name].turn(_VERDICT_TURN_S))
                _count(snapshots)
        conditions = chains["judged"].supervisor.client.status().conditions
        judge_ns = _judge_ns(chains["judged"]) - started_ns
    if any(condition.failed for condition in conditions):
        print(f"what is measured is wrong: {conditions}", file=sys.stderr)
    throughput, cpu = (systems["judged"].against(systems["chain"], what) for what in ("messages_per_s", "cpu_ns"))
    judged, committed = (sum(getattr(one, what) for one in conditions) for what in ("judged", "committed"))
    what = "invariants of 4 processes, a snapshot every 0.1 s"
    return [
        at_least(f"throughput with {what}, on against off", throughput, "x", 0.95, COMMAND),
        shown(f"CPU of a message with {what}, on against off", cpu, "x", COMMAND),
        shown("snapshots judged, of those that committed", judged / committed, "x", COMMAND),
        shown("CPU of the judge, 5 conditions", judge_ns / 1e6 / max(1, conditions[0].judged), "ms/snapshot", COMMAND),
    ]


def _judge_ns(chain: StrobePair) -> int:
    """Return the CPU time of the judge's main thread so far; the judge is the only child of the coordinator."""
    coordinator = chain.supervisor.pid(COORDINATOR)
    (judge,) = Path(f"/proc/{coordinator}/task/{coordinator}/children").read_text().split()
    return int(Path(f"/proc/{judge}/schedstat").read_text().split()[0])


def _gap_figures(folder: Path) -> list[Figure]:
    """The longest time without a delivery under full load, with and without snapshots."""
    longest_s: dict[bool, list[float]] = {False: [], True: []}
    with StrobePair(folder / "watched", "watched") as pair:
        for _ in range(_GAP_ROUNDS):
            longest_s[False].append(pair.turn(_GAP_TURN_S).target_value)
            with Snapshots(pair.supervisor.client, 0.1) as snapshots:
                longest_s[True].append(pair.turn(_GAP_TURN_S).target_value)
            _count(snapshots)
    off, on = (1e3 * statistics.median(values) for values in longest_s.values())
    return [
        shown("longest gap between deliveries in 2 s, no snapshots", off, "ms", COMMAND),
        shown("longest gap between deliveries in 2 s, one every 0.1 s", on, "ms", COMMAND),
    ]


def _count(snapshots: Snapshots) -> int:
    if snapshots.failures:
        print(f"snapshots that were not committed: {'; '.join(snapshots.failures)}", file=sys.stderr)
    return snapshots.committed


def measure() -> list[Figure]:
    others = [others_cores()]
    with tempfile.TemporaryDirectory(dir=Path.cwd()) as place:  # for stores: /tmp may be in memory
        folder = Path(place)
        figures = [*_message_figures(folder / "messages"), *_batch_figures(folder / "in-batches")]
        others.append(others_cores())
        figures += [*_round_trip_figures(folder), *_snapshot_figures(folder), *_gap_figures(folder)]
        figures += _verdict_figures(folder)
    others.append(others_cores())
    return [*figures, shown("processors that others kept busy meanwhile", max(others), "", COMMAND)]
