"""The fixtures that pytest offers wherever Strobe is installed."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from strobe.cli.simulation.simulate import Tally
    from strobe.process import System
    from strobe.testing.running_system import RunningSystem


@pytest.fixture
def strobe_simulate(request: pytest.FixtureRequest) -> "Callable[..., Tally]":
    """Run a system in the simulator under faults, with every checker on: `strobe_simulate(system, seeds=100)`.

    `system` is "file.py:name", "module:name" or "system.toml", relative to the test file or to the current directory;
    or a `System`, which is copied for each seed. `seed` is the first seed; `faults`, `snapshots` (10 for each seed) and
    `protocol` are those of `strobe simulate`. The test fails at the first seed with a violation, and shows the command
    that repeats it. Returns the totals of all runs: `runs`, `events`, `committed`, `injected`.
    """
    near = request.path.parent

    def simulate(
        system: "System | str",
        *,
        seeds: int = 100,
        seed: int = 1,
        faults: str = "all",
        snapshots: int = 10,
        protocol: str | None = None,
    ) -> "Tally":
        __tracebackhide__ = True
        from strobe.errors import StrobeError
        from strobe.testing.seeds import failure_of, run_seeds

        try:
            plan, tally = run_seeds(system, near, seed, seeds, faults, snapshots, protocol)
        except StrobeError as error:
            pytest.fail(str(error), pytrace=False)
        if tally.violations:
            pytest.fail(failure_of(plan, tally), pytrace=False)
        return tally

    return simulate


@pytest.fixture
def live_system(request: pytest.FixtureRequest, tmp_path: Path) -> "Iterator[Callable[..., RunningSystem]]":
    """Run a system as real processes: `live = live_system("bank.py:bank")`.

    The first argument is as for `strobe_simulate`, but a `System` must be a variable of a file, from which each process
    loads it. `interval_s` is the time between snapshots (0.2; 0: only on request); `settings` are settings of
    system.toml, such as {"node.window_bytes": 65536}. The result has `status()`, `snapshot()`, `kill(name)` and
    `stop()`; see `RunningSystem`. The ports are free ones. The processes work in the `tmp_path` of the test: the store
    is there, and relative files, such as those of sources and sinks.

    At the end of the test everything is stopped, and each snapshot is verified, with what the system declares
    (`conserved`). The test fails if one does not hold.
    """
    near = request.path.parent
    started: list[RunningSystem] = []

    def start(
        system: "System | str", *, interval_s: float = 0.2, settings: dict[str, object] | None = None
    ) -> "RunningSystem":
        __tracebackhide__ = True
        from strobe.errors import StrobeError
        from strobe.testing.running_system import RunningSystem

        store = tmp_path / f"store-{len(started) + 1}"
        try:
            running = RunningSystem(system, near, store, interval_s, settings or {})
            started.append(running)
            running.start()
        except StrobeError as error:
            pytest.fail(str(error), pytrace=False)
        return running

    yield start
    problems = [problem for running in started for problem in running.end()]
    if problems:
        pytest.fail("\n".join(problems), pytrace=False)
