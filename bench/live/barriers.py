"""Barriers live: the duration of a snapshot while frames are queued before a slow process, aligned and unaligned (V4).

Half of the queue waits at the slow process, the other half at its source, for lack of credit. A snapshot is taken while
the queue is processed. An aligned one waits for that; an unaligned one does not, and contains the queued frames.
Simulated time shows the protocols alone, because bytes cost nothing there. Live, frames are copied, written and proved.
"""

import os
import statistics
import tempfile
import time
from pathlib import Path
from unittest.mock import patch

from bench.figures import Figure, at_most, shown
from bench.live.barrier_systems import FRAMES, GATE, SENT, SERVICE_S
from strobe import Channel, Process, System
from strobe.cli.live.supervisor import Supervisor
from strobe.protocol import Policy, Snapshot
from strobe.runtime.messages.api_documents import COMMITTED
from strobe.simulation.world import World
from strobe.storage import Store

COMMAND = "python -m bench barriers"
QUEUED = (1_000, 3_000, 10_000)
NAMES = {"aligned": "aligned", "unaligned": "unaligned", "timed": "aligned, unaligned after 0.1 s"}
_FRAME_BYTES = 48
_PATIENCE_S = 60.0
_SETTLE_S = 0.1
"""By then the slow process has read all frames with credit: a barrier overtakes those, but not ones in the kernel."""
_SIMULATED = (100, 1_000, 10_000)
_GROWTH_MAX = 1.2
_SHARE_MAX = 0.2
"""Against the aligned time: queued frames are not waited for, but they are written."""


def _settings(frames: int) -> list[str]:
    chosen = {
        "node.frame_messages_max": 1,
        "node.window_bytes": max(1024, frames * _FRAME_BYTES // 2),
        "node.backlog_bytes_max": 64 << 20,
        "node.alignment_s": 0.1,
        "coordinator.interval_s": 0,
        "coordinator.timeout_s": _PATIENCE_S,
    }
    return [word for key, value in chosen.items() for word in ("--set", f"{key}={value}")]


def completion(name: str, frames: int, folder: Path) -> tuple[float, int]:
    """Return the duration of a snapshot requested when `frames` were queued, and its number of frames in flight."""
    gate = folder / "gate"
    anywhere = ["--listen", "127.0.0.1:0", "--api", "127.0.0.1:0"]
    with patch.dict(os.environ, {FRAMES: str(frames), GATE: str(gate)}):
        Store.create(folder / "store")
        system = Supervisor(
            f"bench.live.barrier_systems:{name}",
            str(folder / "store"),
            ["source", "slow", "sink"],
            [*anywhere, *_settings(frames)],
        )
        with system:
            system.start()
            _await_settled(system)
            system.client.take(timeout_s=_PATIENCE_S)  # the first snapshot opens files and creates directories
            gate.touch()
            while not gate.with_name(gate.name + SENT).exists():  # no cut during the event that sends them
                time.sleep(0.001)
            time.sleep(_SETTLE_S)
            started_s = time.perf_counter()
            taken = system.client.take(timeout_s=_PATIENCE_S)
            took_s = time.perf_counter() - started_s
            assert taken.outcome == COMMITTED, taken
            finished = next(one for one in system.client.status().finished if one.id == taken.id)
            system.stop()
    return took_s, finished.in_flight_messages


class Burst(Process):
    """Sends a number of messages, each in a separate frame, and then requests a snapshot."""

    def __init__(self, frames: int) -> None:
        self.left = frames

    def start(self, ctx):
        ctx.set_timer("send", 0.000001)

    def timer(self, ctx, name):
        self.left -= 1
        ctx.send("source->slow", self.left)
        if self.left:
            ctx.set_timer("send", 0.000001)
        else:
            ctx.snapshot()

    def capture(self):
        return self.left.to_bytes(8, "little")


class Passive(Process):
    def receive(self, ctx, channel, message):
        for output in ctx.outputs:
            ctx.send(output, message)

    def capture(self):
        return b""


def simulated_ms(protocol: str, frames: int) -> float:
    """Return the duration, in simulated time, of a snapshot requested after `frames` were sent at once."""
    return statistics.median(_simulated_ms(protocol, frames, seed) for seed in range(5))


def _simulated_ms(protocol: str, frames: int, seed: int) -> float:
    processes = {"source": Burst(frames), "slow": Passive(), "sink": Passive()}
    system = System(processes, [Channel("source", "slow"), Channel("slow", "sink")], protocol=protocol)
    world = World(system, seed, policy=Policy(interval_us=0, timeout_us=600_000_000))
    taken: list[Snapshot] = []
    world.on_commit = taken.append
    world.run(1, us_max=600_000_000)
    return (taken[0].completed_us - taken[0].started_us) / 1000


def _simulated() -> list[Figure]:
    least, most = _SIMULATED[0], _SIMULATED[-1]
    took = {
        (protocol, frames): simulated_ms(protocol, frames)
        for protocol in ("aligned", "unaligned", "aligned-then-unaligned")
        for frames in _SIMULATED
    }
    growth = took["unaligned", most] / took["unaligned", least]
    return [
        *(
            shown(
                f"{protocol}, simulated: a snapshot with {frames:,} frames queued", one, "ms of simulated time", COMMAND
            )
            for (protocol, frames), one in took.items()
        ),
        at_most(f"unaligned, simulated: {most:,} queued against {least:,}", growth, "x", _GROWTH_MAX, COMMAND),
    ]


def _await_settled(system: Supervisor) -> None:
    deadline_s = time.monotonic() + _PATIENCE_S
    while time.monotonic() < deadline_s:
        system.tick()
        status = system.client.status()
        if status.settled and all(process.state == "running" for process in status.processes):
            return
        time.sleep(0.02)
    raise AssertionError("the system did not begin")


def measure() -> list[Figure]:
    figures: list[Figure] = []
    took: dict[tuple[str, int], float] = {}
    for name, title in NAMES.items():
        for frames in QUEUED:
            with tempfile.TemporaryDirectory() as folder:
                took[name, frames], in_flight = completion(name, frames, Path(folder))
            what = f"{title}: a snapshot with {frames:,} frames queued ({in_flight:,} in flight in it)"
            figures.append(shown(what, 1000 * took[name, frames], "ms", COMMAND))
    most = QUEUED[-1]
    share = took["unaligned", most] / took["aligned", most]
    each_us = 1e6 * (took["unaligned", most] - took["unaligned", QUEUED[0]]) / (most - QUEUED[0])
    return [
        *_simulated(),
        *figures,
        shown(f"the queue of {most:,} is worked off in at least", 1000 * most * SERVICE_S, "ms", COMMAND),
        shown("unaligned: to copy, write and prove one more frame", each_us, "us", COMMAND),
        at_most(f"unaligned against aligned, {most:,} queued", share, "x", _SHARE_MAX, COMMAND),
    ]
