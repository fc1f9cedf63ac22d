"""A planned restart of one of four processes under load: the longest gap at its peers, against a program's start."""

import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import msgspec

from bench.figures import Figure, at_most, shown
from strobe import Channel, Process, System
from strobe.cli.live.supervisor import Supervisor
from strobe.errors import TransportError
from strobe.process import Context
from strobe.runtime.messages.api_documents import Status
from strobe.storage import Store
from strobe.storage.content.state_codec import decode_state

COMMAND = "python -m bench restart"
ROUNDS = 3
RESTARTS = 3
PEERS = ("a", "b", "c")
EVERY_S = 0.002
BURST = 8
DEADLINE_S = 60.0


class Ping(msgspec.Struct, tag=True):
    load: bytes = bytes(100)


class Gaps(msgspec.Struct):
    """The longest time between two messages from the restarted process, since it last had a long one."""

    longest_s: float = 0.0
    received: int = 0


class Peer(Process):
    """Sends to `d` all the time, and measures how long it hears nothing from it."""

    def __init__(self) -> None:
        self.gaps = Gaps()
        self._last_s = 0.0

    def start(self, ctx: Context) -> None:
        ctx.set_timer("send", EVERY_S)

    def timer(self, ctx: Context, name: str) -> None:
        for _ in range(BURST):
            ctx.send(f"{ctx.name}->d", Ping())
        ctx.set_timer("send", EVERY_S)

    def receive(self, ctx: Context, channel: str, message: Ping) -> None:
        now_s = time.monotonic()
        gap_s, self._last_s = now_s - (self._last_s or now_s), now_s
        self.gaps = Gaps(max(self.gaps.longest_s, gap_s), self.gaps.received + 1)

    def capture(self) -> Gaps:
        taken, self.gaps = self.gaps, Gaps(0.0, self.gaps.received)  # each snapshot has the gaps since the one before
        return taken

    def restore(self, state: Gaps) -> None:
        self.gaps = state


class Echo(Process):
    """Answers every message."""

    def __init__(self) -> None:
        self.count = Gaps()

    def receive(self, ctx: Context, channel: str, message: Ping) -> None:
        ctx.send(f"d->{channel[0]}", message)
        self.count.received += 1

    def capture(self) -> Gaps:
        return self.count

    def restore(self, state: Gaps) -> None:
        self.count = state


def star() -> System:
    channels = [Channel(*pair) for name in PEERS for pair in ((name, "d"), ("d", name))]
    return System({**{name: Peer() for name in PEERS}, "d": Echo()}, channels, [Ping])


system = star()


def measure() -> list[Figure]:
    rounds = [_measure() for _ in range(ROUNDS)]
    start_s = statistics.median(start_s for start_s, _, _ in rounds)
    gap_s = statistics.median(gap_s for _, gaps_s, _ in rounds for gap_s in gaps_s)
    return [
        shown("start of a program, until its process runs", start_s, "s", COMMAND),
        shown("longest gap at the peers of a restarted process", gap_s, "s", COMMAND),
        at_most("the gap against the start of a program", gap_s / start_s, "times", 1.5, COMMAND),
        at_most("rollbacks", sum(rollbacks for _, _, rollbacks in rounds), "", 0, COMMAND),
    ]


def _measure() -> tuple[float, list[float], int]:
    """Return how long the start of a program takes, the gaps of some restarts of it, and the number of rollbacks."""
    with tempfile.TemporaryDirectory() as folder:
        Store.create(folder)
        options = ["--interval", "0", "--listen", "127.0.0.1:0", "--api", "127.0.0.1:0"]
        with Supervisor(f"{Path(__file__)}:system", folder, PEERS, options) as supervisor:
            supervisor.start()
            _wait(supervisor, lambda status: len(_running(status)) == len(PEERS))
            began_s = time.monotonic()
            supervisor.add_node("d", supervisor.listen)
            _wait(supervisor, _all_run)
            start_s = time.monotonic() - began_s
            gaps_s = [_restart(supervisor, Path(folder)) for _ in range(RESTARTS)]
            rollbacks = len(_wait(supervisor, _all_run).rollbacks)
            supervisor.stop()
    return start_s, gaps_s, rollbacks


def _restart(supervisor: Supervisor, store: Path) -> float:
    """Restart `d`, and return the longest gap at one of its peers meanwhile."""
    _gap_s(supervisor, store)  # reset the gaps
    before = {process.name: process.instance for process in supervisor.client.status().processes}
    supervisor.client.restart("d")
    _wait(supervisor, lambda now: _all_run(now) and _instance(now) != before["d"])
    until_s = time.monotonic() + 0.5
    while time.monotonic() < until_s:
        supervisor.tick()
        time.sleep(0.01)
    return _gap_s(supervisor, store)


def _gap_s(supervisor: Supervisor, store: Path) -> float:
    """Return the longest gap since the last call."""
    taken = supervisor.client.take(wait=True)
    assert taken.id is not None, taken
    snapshot = Store.open(store).load(taken.id)
    states = {name: snapshot.fragments[name].state for name in PEERS}
    return max(decode_state(system.processes[name], state).longest_s for name, state in states.items() if state)


def _wait(supervisor: Supervisor, check: Callable[[Status], bool]) -> Status:
    deadline_s = time.monotonic() + DEADLINE_S
    while time.monotonic() < deadline_s:
        supervisor.tick()
        try:
            status = supervisor.client.status()
        except TransportError:
            continue
        if check(status):
            return status
        time.sleep(0.005)
    raise AssertionError(f"the system does not run; see {supervisor.logs}")


def _running(status: Status) -> list[str]:
    return [process.name for process in status.processes if process.state == "running"]


def _all_run(status: Status) -> bool:
    return status.settled and len(_running(status)) == len(system.processes)


def _instance(status: Status) -> str:
    return next(process.instance for process in status.processes if process.name == "d")
