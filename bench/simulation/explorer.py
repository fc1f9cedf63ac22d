"""The explorer: states per CPU second, compared with a search without protocols; and a full exploration."""

import subprocess
import sys

import msgspec

from bench.figures import Figure, at_most, cpu_s, interleaved, shown, wall_s
from strobe.simulation.explorer import Explored, explore, scenario, scenarios

COMMAND = "python -m bench explorer"
ALL = "strobe explore --all"
_STATES = 36_873


def _search() -> float:
    found: list[Explored] = []
    seconds = cpu_s(lambda: found.append(explore(scenario("pair-cl"))))
    return found[0].states / seconds


def _grid() -> float:
    """A breadth-first search over the same number of plain tuples of the same width."""

    def search() -> None:
        start = (0,) * 8
        known = {start: None}
        level = [start]
        while len(known) < _STATES:
            following = []
            for state in level:
                for place in (0, 3, 6):
                    after = (*state[:place], state[place] + 1, *state[place + 1 :])
                    if after not in known:
                        known[after] = state
                        following.append(after)
            level = following

    return _STATES / cpu_s(search)


def measure() -> list[Figure]:
    rate, bare = interleaved(5, _search, _grid)
    small = [known for known in scenarios() if not known.large]
    in_tests_s = wall_s(lambda: [explore(known) for known in small])
    everything: list[dict] = []

    def run_all() -> None:
        done = subprocess.run(
            [sys.executable, "-m", "strobe", "explore", "--all", "--json"], capture_output=True, check=True
        )
        everything.append(msgspec.json.decode(done.stdout))

    all_s = wall_s(run_all)
    states = sum(one["states"] for one in everything[0]["scenarios"])
    return [
        shown("explorer, two processes under Chandy-Lamport", rate, "states/CPU s", COMMAND),
        shown("explorer against a search of empty tuples", rate / bare, "x", COMMAND),
        at_most("explorer, the part in `make test`, one core", in_tests_s, "s", 120, COMMAND),
        at_most("explorer, --all on two cores", all_s, "s", 600, ALL),
        shown("explorer, --all", states, "states", ALL),
    ]
