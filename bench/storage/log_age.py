"""The cost of an old store: starting a coordinator, listing, planning; from a checkpoint, and from all entries."""

import asyncio
import io
import os
import resource
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from bench.figures import Figure, at_most, interleaved, shown, wall_s
from bench.storage.aged_store import PROCESSES, make_store
from strobe import Channel, Process, System
from strobe.runtime.coordinator.coordinator import Coordinator
from strobe.runtime.event_log import EventLog
from strobe.runtime.settings import CoordinatorSettings
from strobe.storage import Store
from strobe.storage.checkpoints import checkpoint_writer
from strobe.storage.files.layout import CHECKPOINTS
from strobe.storage.log.follower import Follower

COMMAND = "python -m bench log_age"
COMMITS = (1_000, 10_000, 100_000)
ROUNDS = 3


class Idle(Process):
    """Does nothing."""

    def receive(self, ctx: object, channel: str, message: object) -> None: ...

    def capture(self) -> object:
        return None

    def restore(self, state: object) -> None: ...


def _start(path: Path) -> float:
    """Return the time until a coordinator has taken over the log."""

    async def start() -> float:
        system = System({name: Idle() for name in PROCESSES}, [Channel("a", "b"), Channel("b", "c"), Channel("c", "a")])
        log = EventLog(io.StringIO(), as_json=True)
        coordinator = Coordinator(system, str(path), CoordinatorSettings(interval_s=0.0), log=log)
        started = asyncio.get_running_loop().time()
        await coordinator.start()
        taken = asyncio.get_running_loop().time() - started
        await coordinator.close()
        return taken

    return asyncio.run(start())


def _list(path: Path) -> float:
    """Return the CPU time of the command, including the interpreter's start; it waits for nothing else.

    All modules are compiled, as after an installation.
    """
    strobe = Path(sys.executable).with_name("strobe")
    command = [str(strobe), "snapshot", "list", "--last", "20", "--store", str(path)]
    compiled = path.with_name("compiled")
    environment = {**os.environ, "PYTHONDONTWRITEBYTECODE": "", "PYTHONPYCACHEPREFIX": str(compiled)}
    if not compiled.exists():
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, env=environment)
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, env=environment)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def _plan(path: Path) -> float:
    """Return the time a stream needs to find all commits from offset 0 on."""

    def plan() -> None:
        follower = Follower(path)
        follower.between(0, follower.advance())

    return wall_s(plan)


MEASURES: dict[str, Callable[[Path], float]] = {
    "coordinator's start": _start,
    "`snapshot list --last 20`": _list,
    "planning a stream from 0": _plan,
}
GOALS = {"coordinator's start": 1.0, "`snapshot list --last 20`": 0.5}


def measure() -> list[Figure]:
    figures: list[Figure] = []
    for commits in COMMITS:
        with tempfile.TemporaryDirectory() as folder:
            figures += _measure(Path(folder), commits)
    return figures


def _measure(folder: Path, commits: int) -> list[Figure]:
    path = folder / "store"
    make_store(path, commits)
    figures: list[Figure] = []
    without = {name: measured(path) for name, measured in MEASURES.items() if name != "coordinator's start"}
    # The first start reads all entries, and writes the checkpoint for the others.
    without["coordinator's start"] = _start(path)
    shutil.rmtree(path / CHECKPOINTS)
    store = Store.open(path, checkpoint_every=checkpoint_writer.EVERY, manifests_kept=16)
    store.state()
    figures.append(
        shown(f"writing the first checkpoint of {commits:,} commits", wall_s(store.write_checkpoint), "s", COMMAND)
    )
    for name, measured in MEASURES.items():
        (taken,) = interleaved(ROUNDS, lambda measured=measured: measured(path))
        figures.append(_figure(f"{name}, {commits:,} commits", name, commits, taken))
        figures.append(shown(f"the same without a checkpoint, {commits:,}", without[name] / taken, "times", COMMAND))
    return figures


def _figure(title: str, name: str, commits: int, taken: float) -> Figure:
    unit = "CPU s" if MEASURES[name] is _list else "s"
    if commits == COMMITS[-1] and name in GOALS:
        return at_most(title, taken, unit, GOALS[name], COMMAND)
    return shown(title, taken, unit, COMMAND)
