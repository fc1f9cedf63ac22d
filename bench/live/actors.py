"""1,000 small actors in 4 programs: time and memory of a snapshot; and the cost of a message in memory against TCP."""

import statistics
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from bench.figures import Figure, at_most, shown
from bench.live.actor_systems import ACTORS, EVERY_S, PROGRAMS, names
from bench.live.contest import await_, check, supervise
from strobe.cli.live.child import COORDINATOR
from strobe.cli.live.supervisor import Supervisor
from strobe.errors import TransportError
from strobe.runtime.messages.api_documents import COMMITTED, Status

COMMAND = "python -m bench actors"
_SNAPSHOTS = 7
_START_S_MAX = 300.0
_PATIENCE_S = 60.0
_PATIENT = ("--timeout", f"{_PATIENCE_S:g}", "--silence", f"{_PATIENCE_S:g}")
_SYSTEMS = "bench.live.actor_systems"
_TALK_S = 2.0
_ROUNDS = 3
_MIB = 1 << 20


def _start(system: Supervisor) -> Status:
    """Start everything, and return the status once all channels are connected."""
    system.start()
    found: list[Status] = []

    def settled() -> bool:
        check(system)
        try:
            found[:] = [system.client.status()]
        except TransportError:  # it is busy with registrations
            return False
        status = found[0]
        running = all(process.state == "running" for process in status.processes)
        return status.settled and running and all(channel.connected for channel in status.channels)

    await_(settled, "all processes to be connected", _START_S_MAX)
    return found[0]


def _resident_bytes(pids: Sequence[int | None]) -> int:
    return sum(int(Path(f"/proc/{pid}/smaps_rollup").read_text().split("Rss:")[1].split()[0]) << 10 for pid in pids)


def _many(folder: Path) -> list[Figure]:
    everyone, size = names(), ACTORS // PROGRAMS
    shared = [everyone[at : at + size] for at in range(0, ACTORS, size)]
    title = f"{ACTORS} processes in {PROGRAMS} programs"
    with supervise(f"{_SYSTEMS}:actors", folder / "actors", [], _PATIENT, shared) as system:
        began_s = time.monotonic()
        _start(system)
        start_s = time.monotonic() - began_s
        for _ in range(1 + _SNAPSHOTS):
            taken = system.client.take(timeout_s=_PATIENCE_S)
            if taken.outcome != COMMITTED:
                raise RuntimeError(f"a snapshot of {title} was not taken: {taken.outcome} {taken.reason}")
            time.sleep(EVERY_S)  # by then every state has changed
        check(system)
        finished = system.client.status().finished[1:]  # the first snapshot creates folders and imports modules
        programs = [system.pid(names[0]) for names in shared]
        memory = _resident_bytes(programs) / ACTORS / _MIB
        whole = _resident_bytes([*programs, system.pid(COORDINATOR)]) / ACTORS / _MIB
    return [
        shown(f"{title}: start", start_s, "s", COMMAND),
        shown(f"{title}: snapshot", statistics.median(one.duration_us for one in finished) / 1e6, "s", COMMAND),
        at_most(f"{title}: memory of each", memory, "MB", 1.0, COMMAND),
        shown(f"{title}: memory of each, with the coordinator", whole, "MB", COMMAND),
    ]


def _cpu_us(system: str, store: Path, together: bool) -> float:
    """Return the processor time of one message, at both ends."""
    alone, shared = ([], [["a", "b"]]) if together else (["a", "b"], [])
    with supervise(f"{_SYSTEMS}:{system}", store, alone, shared=shared) as running:
        _start(running)
        time.sleep(_TALK_S / 2)
        before = running.client.status()
        time.sleep(_TALK_S)
        after = running.client.status()
        check(running)
    handled = _total(after, "b") - _total(before, "b")
    handled += (_total(after, "a") - _total(before, "a")) if system == "volley" else 0
    cpu_s = sum(process.cpu_s for process in after.processes) - sum(process.cpu_s for process in before.processes)
    return cpu_s / handled * 1e6


def _total(status: Status, name: str) -> int:
    return next(process.position for process in status.processes if process.name == name)


def _messages(folder: Path) -> list[Figure]:
    figures = []
    for system, title in (("volley", "single messages, back and forth"), ("stream", "a stream of messages")):
        taken = [
            [_cpu_us(system, folder / f"{system}{number}{together}", together) for together in (True, False)]
            for number in range(_ROUNDS)
        ]
        memory, tcp = (statistics.median(column) for column in zip(*taken, strict=True))
        figures += [
            shown(f"CPU per message in memory, {title}", memory, "us", COMMAND),
            shown(f"CPU per message in memory against TCP, {title}", memory / tcp, "x", COMMAND),
        ]
    return figures


def measure() -> list[Figure]:
    with tempfile.TemporaryDirectory(dir=Path.cwd()) as place:  # for stores: /tmp may be in memory
        return [*_messages(Path(place)), *_many(Path(place))]
