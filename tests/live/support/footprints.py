"""The resources of the processes of a live system, and that they do not grow."""

import os
from itertools import combinations
from pathlib import Path

import msgspec


class Footprint(msgspec.Struct):
    """The resources of a process of the operating system."""

    memory_bytes: int
    descriptors: int
    threads: int

    @classmethod
    def of(cls, pid):
        place = Path("/proc") / str(pid)
        pages = int((place / "statm").read_text().split()[1])
        count = len(list((place / "fd").iterdir()))
        return cls(pages * os.sysconf("SC_PAGE_SIZE"), count, len(list((place / "task").iterdir())))


def steady_growth(samples):
    """Return the lower quartile of the growth per unit, over all pairs of the samples (units, amount).

    A leak grows between any two samples. Memory that is allocated once, for example on a busy machine, does not count.
    """
    slopes = sorted((more - less) / (later - sooner) for (sooner, less), (later, more) in combinations(samples, 2))
    return slopes[len(slopes) // 4]


def assert_no_leak(samples, memory_bytes_each):
    """Check samples of (units, footprints). `memory_bytes_each` limits growth per unit, by process or "" for others.

    The number of descriptors and threads may vary by one or two, but must not grow.
    """
    for who in samples[0][1]:
        grown = steady_growth([(units, found[who].memory_bytes) for units, found in samples])
        assert grown < memory_bytes_each.get(who, memory_bytes_each[""]), (who, grown, samples)
        half = len(samples) // 2
        for kind in ("descriptors", "threads"):
            counts = [getattr(found[who], kind) for _, found in samples]
            assert min(counts[half:]) <= max(counts[:half]) + 2, (who, kind, counts)
