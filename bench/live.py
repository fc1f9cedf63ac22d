"""The live runtime: what a message costs, against the same framing without Strobe and against others; what snapshots do.

Everything that is compared is up at the same time and takes turns; figures are medians of the turns.
"""

import statistics
import sys
import tempfile
import threading
import time
from contextlib import ExitStack
from pathlib import Path

from bench.contest import Pair, PeerPair, StrobePair, Turn, take_turns
from bench.figures import Figure, at_least, at_most, shown
from bench.peers import versions
from strobe.runtime.client import Client
from strobe.runtime.documents import COMMITTED

COMMAND = "python -m bench live"
_ROUNDS, _TURN_S = 9, 1.0
_SNAPSHOT_ROUNDS, _SNAPSHOT_TURN_S = 5, 3.0
_GAP_ROUNDS, _GAP_TURN_S = 4, 2.0
_TAKE_TIMEOUT_S = 30.0

_STROBE, _PLAIN, _TRACED, _RING, _RAW = "strobe", "plain framing", "strobe, traced", "strobe ring", "raw"
_PEERS = {
    "pyzmq": ("zmq:single", 3),
    "asyncio streams": ("streams:single", 6),
    "grpc.aio, one stream": ("grpc-stream:single", 100),
    "grpc.aio, a call each": ("grpc-calls:single", 100),
    "pyzmq, batched by hand": ("zmq:batched", None),
    "asyncio streams, batched by hand": ("streams:batched", None),
    "grpc.aio, one stream, batched by hand": ("grpc-stream:batched", None),
}


class Snapshots(threading.Thread):
    """Has a snapshot taken every so often, until it is stopped."""

    def __init__(self, client: Client, every_s: float) -> None:
        super().__init__(daemon=True)
        self.committed = 0
        self.failures: list[str] = []
        self._client = client
        self._every_s = every_s
        self._stopped = threading.Event()

    def run(self) -> None:
        due_s = time.monotonic() + self._every_s / 2  # so that a turn has as many as it is long
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


def _turns(folder: Path) -> dict[str, Turn]:
    """Return the medians of everything that is compared message by message."""
    pairs: dict[str, Pair] = {
        _STROBE: StrobePair(folder / "pair", "pair"),
        _PLAIN: StrobePair(folder / "plain", "plain"),
        _TRACED: StrobePair(folder / "traced", "pair", ("--trace", "ordinals")),
        _RING: StrobePair(folder / "ring", "ring"),
        _RAW: PeerPair(folder / "raw", "raw"),
    }
    for name, (kind, _) in _PEERS.items():
        pairs[name] = PeerPair(folder / kind.replace(":", "-"), kind)
    with ExitStack() as stack:
        for pair in pairs.values():
            stack.enter_context(pair)
        return take_turns(pairs, _ROUNDS, _TURN_S)


def _message_figures(turns: dict[str, Turn]) -> list[Figure]:
    strobe, plain, traced = turns[_STROBE], turns[_PLAIN], turns[_TRACED]
    return [
        shown("messages of 100 bytes, from process to process", strobe.messages_per_s, "messages/s", COMMAND),
        shown("the same, the sender's part", strobe.source_ns, "ns CPU/message", COMMAND),
        shown("the same, the receiver's part", strobe.target_ns, "ns CPU/message", COMMAND),
        shown("framing without ordinals, hash, recording: sender", plain.source_ns, "ns CPU/message", COMMAND),
        shown("framing without ordinals, hash, recording: receiver", plain.target_ns, "ns CPU/message", COMMAND),
        at_most("CPU of a message against that framing", strobe.cpu_ns / plain.cpu_ns, "x", 1.15, COMMAND),
        at_least(
            "throughput with a trace of ordinals, against none",
            traced.messages_per_s / strobe.messages_per_s,
            "x",
            0.9,
            COMMAND,
        ),
        shown("CPU of a message with a trace, against none", traced.cpu_ns / strobe.cpu_ns, "x", COMMAND),
    ]


def _peer_figures(turns: dict[str, Turn]) -> list[Figure]:
    strobe = turns[_STROBE]
    figures = []
    for name, (_, goal) in _PEERS.items():
        peer = turns[name]
        ratio = strobe.messages_per_s / peer.messages_per_s
        title = f"messages/s against {name}"
        figures.append(at_least(title, ratio, "x", goal, COMMAND) if goal else shown(title, ratio, "x", COMMAND))
        figures.append(shown(f"{name}: messages", peer.messages_per_s, "messages/s", COMMAND))
        figures.append(shown(f"{name}: CPU", peer.cpu_ns, "ns CPU/message", COMMAND))
    return figures


def _round_trip_figures(turns: dict[str, Turn]) -> list[Figure]:
    ring, raw = turns[_RING], turns[_RAW]
    return [
        shown("round trip of a small message, handler to handler", ring.source_value * 1e6, "us", COMMAND),
        shown("round trip of as many bytes, raw uvloop sockets", raw.source_value * 1e6, "us", COMMAND),
        at_most("round trip against raw uvloop sockets", ring.source_value / raw.source_value, "x", 1.5, COMMAND),
        shown("CPU of a round trip against raw uvloop sockets", ring.cpu_ns / raw.cpu_ns, "x", COMMAND),
    ]


def _snapshot_figures(folder: Path) -> list[Figure]:
    """The same two processes under full load: without snapshots, with one every second, with one every 100 ms."""
    off: list[Turn] = []
    on: dict[float, list[Turn]] = {1.0: [], 0.1: []}
    committed = dict.fromkeys(on, 0)
    with StrobePair(folder / "snapshots", "pair") as pair:
        pair.gate.open()
        for _ in range(_SNAPSHOT_ROUNDS):
            off.append(pair.watch(_SNAPSHOT_TURN_S))
            for every_s, turns in on.items():
                with Snapshots(pair.supervisor.client, every_s) as snapshots:
                    turns.append(pair.watch(_SNAPSHOT_TURN_S))
                committed[every_s] += _count(snapshots)
    figures = []
    for (every_s, turns), goal in zip(on.items(), (0.95, 0.85), strict=True):
        throughput, cpu = (_median_ratio(turns, off, what) for what in ("messages_per_s", "cpu_ns"))
        rate = committed[every_s] / (_SNAPSHOT_ROUNDS * _SNAPSHOT_TURN_S)
        title = f"with a snapshot every {every_s:g} s"
        figures += [
            at_least(f"throughput {title}, against none", throughput, "x", goal, COMMAND),
            shown(f"CPU of a message {title}, against none", cpu, "x", COMMAND),
            # Snapshots that are late cost less: throughput says nothing unless they were taken.
            at_least(f"snapshots that were complete, one due every {every_s:g} s", rate, "1/s", 0.9 / every_s, COMMAND),
        ]
    return figures


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


def _median_ratio(turns: list[Turn], others: list[Turn], what: str) -> float:
    """Return the median over the rounds: turns of one round have the same neighbours."""
    return statistics.median(
        getattr(turn, what) / getattr(other, what) for turn, other in zip(turns, others, strict=True)
    )


def measure() -> list[Figure]:
    print(f"  {versions()}", file=sys.stderr)
    with tempfile.TemporaryDirectory(dir=Path.cwd()) as place:  # where stores go: /tmp may be in memory
        folder = Path(place)
        turns = _turns(folder)
        return [
            *_message_figures(turns),
            *_round_trip_figures(turns),
            *_peer_figures(turns),
            *_snapshot_figures(folder),
            *_gap_figures(folder),
        ]
