"""The check of a system at its start, against making the same system: 10 processes with small states."""

import statistics
import subprocess
import sys

from bench.figures import Figure, at_most, shown

COMMAND = "python -m bench self_check"
PROCESSES = 10
ROUNDS = 7

PROGRAM = """
import sys, time
sys.path.insert(0, ".")
from examples.bank import Branch, Transfer, total
from strobe import Channel, System
from strobe.self_check import check_system

names = [f"p{{number}}" for number in range({processes})]
began = time.process_time()
bank = System(
    {{name: Branch(200) for name in names}},
    [Channel(one, other) for one in names for other in names if one != other],
    [Transfer],
    conserved=total,
)
made = time.process_time()
check_system(bank).require_sound()
print(made - began, time.process_time() - made)
"""


def measure() -> list[Figure]:
    """Measure in new programs, as it runs in `strobe up`: the first check also reads the sources of the classes."""
    taken = [_run() for _ in range(ROUNDS)]
    made_ms, checked_ms = (statistics.median(column) * 1000 for column in zip(*taken, strict=True))
    channels = PROCESSES * (PROCESSES - 1)
    name = f"check at the start of {PROCESSES} processes with small states and {channels} channels, CPU"
    return [
        at_most(name, checked_ms, "ms", 50, COMMAND),
        shown("making the same system, CPU", made_ms, "ms", COMMAND),
    ]


def _run() -> tuple[float, float]:
    program = PROGRAM.format(processes=PROCESSES)
    printed = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout
    made, checked = printed.split()
    return float(made), float(checked)
