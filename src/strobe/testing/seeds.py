"""Runs a system in the simulator, one seed after another, as `strobe simulate` does."""

from pathlib import Path

from strobe.cli.arguments.systems import open_system
from strobe.cli.shell.output import ProgressLine, count
from strobe.cli.simulation.simulate import SimulationPlan, Tally, run_all
from strobe.process import System
from strobe.simulation.faults import Faults
from strobe.testing.systems import Copies, spec_of

VIOLATIONS_SHOWN_MAX = 5


class UnnamedPlan(SimulationPlan, frozen=True):
    """The plan for a system that no command line can name."""

    def command(self, seed: int) -> str:
        """Return the call that reproduces the run of `seed` alone."""
        words = ["system", "seeds=1", f"seed={seed}", f"faults={self.faults!r}", f"snapshots={self.snapshots}"]
        words += [f"protocol={self.protocol!r}"] if self.protocol is not None else []
        return f"strobe_simulate({', '.join(words)})"


def run_seeds(
    system: System | str, near: Path, seed: int, seeds: int, faults: str, snapshots: int, protocol: str | None
) -> tuple[SimulationPlan, Tally]:
    """Run `seeds` seeds from `seed` on, up to the first violation."""
    parameters = Faults.parse(faults, rollbacks=True)
    spec = spec_of(system, near)
    make = SimulationPlan if spec is not None else UnnamedPlan
    plan = make(spec or "", seed, seeds, faults, snapshots, protocol, None, None, "ordinals")
    with ProgressLine() as progress:
        if isinstance(system, System):
            return plan, run_all(plan, Copies(system, protocol), parameters, progress)
        with open_system(spec or system, protocol) as source:
            return plan, run_all(plan, source, parameters, progress)


def failure_of(plan: SimulationPlan, tally: Tally) -> str:
    """Return the violations of the failing seed, and how to repeat it."""
    assert tally.violated_seed is not None, "a violation belongs to a run"
    shown = [f"  {violation}" for violation in tally.violations[:VIOLATIONS_SHOWN_MAX]]
    rest = len(tally.violations) - len(shown)
    more = [f"  and {rest} more"] if rest > 0 else []
    head = f"{count(len(tally.violations), 'violation')} with seed {tally.violated_seed}:"
    return "\n".join([head, *shown, *more, "run it again:", f"  {plan.command(tally.violated_seed)}"])
