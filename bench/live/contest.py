"""Pairs of programs that take turns: all are started, and one at a time runs, so that noise affects all equally."""

import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from types import TracebackType
from typing import NamedTuple, Self

from bench.live.gauge import VARIABLE, Gate, Gauge, Reading
from strobe.cli.live.supervisor import Supervisor
from strobe.storage import Store

START_S_MAX = 60.0
RAMP_S = 0.2
QUIET_S = 0.1


class Turn(NamedTuple):
    """The result of one turn of a pair; the values are the processes' own measurements."""

    messages_per_s: float
    source_ns: float
    target_ns: float
    source_value: float = 0.0
    target_value: float = 0.0

    @property
    def cpu_ns(self) -> float:
        """The CPU time of one message, at both ends."""
        return self.source_ns + self.target_ns


class Pair(AbstractContextManager["Pair"]):
    """Two programs with a gate and gauges in `folder`."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True)
        self.folder = folder
        self.gate = Gate(folder)
        self._gauges = Gauge("source", folder), Gauge("target", folder)

    def start(self) -> None:
        raise NotImplementedError

    def check(self) -> None:
        """Raise if a program has ended."""
        raise NotImplementedError

    def close(self) -> None:
        raise NotImplementedError

    def pids(self) -> tuple[int, int]:
        """Return the process ids of source and target."""
        raise NotImplementedError

    def place(self, source: set[int], target: set[int]) -> None:
        """Restrict the two programs to these processors."""
        for pid, processors in zip(self.pids(), (source, target), strict=True):
            for thread in Path(f"/proc/{pid}/task").iterdir():
                os.sched_setaffinity(int(thread.name), processors)

    def __enter__(self) -> Self:
        os.environ[VARIABLE] = str(self.folder)
        try:
            self.start()
            await_(lambda: self.check() or all(gauge.read() for gauge in self._gauges), f"{self.folder.name} to start")
            self.turn(RAMP_S)
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def read(self) -> tuple[Reading, Reading]:
        source, target = (gauge.read() for gauge in self._gauges)
        assert source is not None, "it has begun"
        assert target is not None, "it has begun"
        return source, target

    def turn(self, seconds: float) -> Turn:
        """Let the pair run for `seconds`, and return what it did."""
        self.gate.open()
        try:
            time.sleep(RAMP_S)
            turn = self.watch(seconds)
        finally:
            self.gate.shut()
        self._await_quiet()
        # The processes report their own measurements at the end of their turn.
        source, target = self.read()
        return turn._replace(source_value=source.value, target_value=target.value)

    def watch(self, seconds: float) -> Turn:
        """Return what the pair does in `seconds`, while it runs."""
        before = self.read()
        time.sleep(seconds)
        self.check()
        after = self.read()
        source_ns, target_ns = (
            1e9 * (late.cpu_s - early.cpu_s) / max(1, late.messages - early.messages)
            for early, late in zip(before, after, strict=True)
        )
        passed_s = after[1].at_s - before[1].at_s
        if not passed_s:
            raise RuntimeError(f"{self.folder.name} took no message in {seconds} s")
        rate = (after[1].messages - before[1].messages) / passed_s
        return Turn(rate, source_ns, target_ns, after[0].value, after[1].value)

    def _await_quiet(self) -> None:
        """Wait until all messages in flight have arrived, so that the next turn is not disturbed."""
        counts: list[tuple[int, int]] = []

        def quiet() -> bool:
            time.sleep(QUIET_S)
            source, target = self.read()
            counts.append((source.messages, target.messages))
            return len(counts) > 1 and counts[-1] == counts[-2]

        await_(quiet, f"{self.folder.name} to come to rest")


class StrobePair(Pair):
    """A system of bench/live_systems.py under a coordinator that takes snapshots on demand."""

    def __init__(self, folder: Path, system: str, options: Sequence[str] = (), between: Sequence[str] = ()) -> None:
        super().__init__(folder)
        processes = ("source", *between, "target")
        self.supervisor = supervise(f"bench.live.live_systems:{system}", folder / "store", processes, options)

    def start(self) -> None:
        self.supervisor.start()

    def check(self) -> None:
        check(self.supervisor)

    def close(self) -> None:
        self.supervisor.close()

    def pids(self) -> tuple[int, int]:
        source, target = self.supervisor.pid("source"), self.supervisor.pid("target")
        assert source is not None, "it runs"
        assert target is not None, "it runs"
        return source, target


class PeerPair(Pair):
    """One of bench/peers.py."""

    def __init__(self, folder: Path, kind: str) -> None:
        super().__init__(folder)
        self._kind = kind
        self._programs: list[subprocess.Popen[bytes]] = []

    def start(self) -> None:
        for end in ("target", "source"):
            command = [sys.executable, "-m", "bench.live.peers", self._kind, end]
            self._programs.append(subprocess.Popen(command, stdin=subprocess.DEVNULL))

    def check(self) -> None:
        for program in self._programs:
            if program.poll() is not None:
                raise RuntimeError(
                    f"{self._kind} has ended with exit code {program.returncode}; its messages are above"
                )

    def pids(self) -> tuple[int, int]:
        target, source = self._programs
        return source.pid, target.pid

    def close(self) -> None:
        for program in self._programs:
            program.kill()
            program.wait()


def supervise(
    system: str,
    store: Path,
    processes: Sequence[str],
    options: Sequence[str] = (),
    shared: Sequence[Sequence[str]] = (),
) -> Supervisor:
    """Return a system (MODULE:NAME), not started yet: at any free port, snapshots only on demand."""
    anywhere = ("--listen", "127.0.0.1:0", "--api", "127.0.0.1:0", "--interval", "0")
    Store.open_or_create(store)
    return Supervisor(system, str(store), processes, [*anywhere, *options], shared=shared)


def check(supervisor: Supervisor) -> None:
    """Raise if a program of the system has ended: then the measurement is void."""
    for gone in supervisor.tick():
        log = supervisor.logs / f"{gone.name}.log"
        raise RuntimeError(f"{gone}; its log ends:\n{log.read_text()[-2000:]}")


class Turns(list[Turn]):
    """The turns of one pair, or of several equal pairs, round by round."""

    def median(self, what: str) -> float:
        return statistics.median(getattr(turn, what) for turn in self)

    def against(self, other: "Turns", what: str) -> float:
        """Return the median of the ratios of each round: turns of one round run under the same conditions."""
        return statistics.median(getattr(a, what) / getattr(b, what) for a, b in zip(self, other, strict=True))

    def beside(self, other: "Turns") -> "Turns":
        """Return the means of two equal pairs: one may by chance have a better memory layout."""
        return Turns(Turn(*map(statistics.fmean, zip(a, b, strict=True))) for a, b in zip(self, other, strict=True))


def take_turns(pairs: Mapping[str, Pair], rounds: int, seconds: float) -> dict[str, Turns]:
    """Let every pair run in turn, for `rounds` rounds, each starting with a different pair."""
    taken = {name: Turns() for name in pairs}
    names = list(pairs)
    for number in range(rounds):
        first = number % len(names)
        for name in names[first:] + names[:first]:
            taken[name].append(pairs[name].turn(seconds))
    return taken


def others_cores(seconds: float = 1.0) -> float:
    """Return how many processors are busy while nothing is measured: if any is, throughput figures are unreliable."""

    def busy() -> float:
        user, nice, system, idle, waiting, *rest = map(int, Path("/proc/stat").read_text().split()[1:9])
        del idle, waiting
        return (user + nice + system + sum(rest)) / os.sysconf("SC_CLK_TCK")

    before = busy()
    time.sleep(seconds)
    return (busy() - before) / seconds


def await_(done: Callable[[], object], what: str, patience_s: float = START_S_MAX) -> None:
    """Wait until `done` returns true."""
    deadline_s = time.monotonic() + patience_s
    while not done():
        if time.monotonic() > deadline_s:
            raise RuntimeError(f"waited {patience_s:g} s for {what}")
        time.sleep(0.02)
