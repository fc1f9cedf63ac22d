"""The inner loops of the lattice, on arrays of numbers only, so that they can be compiled (`compiled.py`).

A process of the run has states 0, 1, 2, ...: state k is its state after k events of the trace. `clocks` has a row for
each state of each process, those of process p from row `starts[p]` on: how many events of every process are in the
causal past of that state. A cut is a row of states. It is consistent exactly when no row that it picks needs more of
any process than the cut has:

    clocks[starts[p] + cut[p], q] <= cut[q]     for all p and q

These are plain functions: they also run uncompiled, only slower.
"""

from typing import Any

Integers = Any
"""An array of integers; callers choose the type. The compiler needs no more than this."""


def lexical(
    clocks: Integers,
    starts: Integers,
    lengths: Integers,
    limits: Integers,
    cut: Integers,
    floors: Integers,
    tops: Integers,
    out: Integers,
) -> int:
    """Write the consistent cuts that follow `cut` in lexical order into the rows of `out`; return their number.

    V. Garg, "Enumerating global states of a distributed computation" (2003). To get to the next cut, find the last
    process k whose next event needs nothing more of the processes before k; let it happen, keep the processes before k,
    and give the processes after k the least states that those up to k need. The only memory is `cut`, which ends as the
    last cut written, and two tables by process, so that a step computes nothing twice. Row k of `floors` is what the
    processes 0..k need of all others. `tops[k]` is the last state of the last process that needs no more of them than
    they have. It comes from `limits`, which has that for each state of each process by itself.
    """
    width = len(lengths)
    last = width - 1
    room = len(out)
    top = lengths[last]
    for p in range(last):
        if limits[starts[p] + cut[p]] < top:
            top = limits[starts[p] + cut[p]]
        tops[p] = top
    written = 0
    while written < room:
        # Most steps: the last process moves by itself.
        while cut[last] < top and written < room:
            cut[last] += 1
            for p in range(width):
                out[written, p] = cut[p]
            written += 1
        if written == room:
            return written
        k = last - 1
        while k >= 0:
            if cut[k] < lengths[k]:
                row = starts[k] + cut[k] + 1
                before = 0
                while before < k and clocks[row, before] <= cut[before]:
                    before += 1
                if before == k:
                    break
            k -= 1
        if k < 0:
            return written
        cut[k] += 1
        row = starts[k] + cut[k]
        for q in range(k + 1, width):
            need = clocks[row, q]
            if k > 0 and floors[k - 1, q] > need:
                need = floors[k - 1, q]
            floors[k, q] = need
            cut[q] = need
        # The causal past of the processes up to k needs nothing more than they do.
        for p in range(k + 1, last):
            for q in range(p + 1, width):
                floors[p, q] = floors[k, q]
        top = tops[k - 1] if k > 0 else lengths[last]
        for p in range(k, last):
            if limits[starts[p] + cut[p]] < top:
                top = limits[starts[p] + cut[p]]
            tops[p] = top
        for p in range(width):
            out[written, p] = cut[p]
        written += 1
    return written


def successors(
    clocks: Integers,
    starts: Integers,
    lengths: Integers,
    cuts: Integers,
    slots: Integers,
    out: Integers,
    parents: Integers,
    steps: Integers,
) -> int:
    """Write every consistent cut with one event more than one of `cuts` into `out`, once; return their number.

    `parents` and `steps` record from which of `cuts` it was reached first, and by an event of which process. `slots` is
    a hash table, all -1, its length a power of two above that of `out`. Returns -1 if `out` is too small.
    """
    width = len(lengths)
    mask = len(slots) - 1
    written = 0
    for parent in range(len(cuts)):
        for k in range(width):
            if cuts[parent, k] >= lengths[k]:
                continue
            row = starts[k] + cuts[parent, k] + 1
            enabled = True
            for q in range(width):
                if q != k and clocks[row, q] > cuts[parent, q]:
                    enabled = False
                    break
            if not enabled:
                continue
            code = 0
            for q in range(width):
                code = ((code ^ (cuts[parent, q] + (1 if q == k else 0))) * 0x9E3779B1) & 0x7FFFFFFF
            slot = (code ^ (code >> 15)) & mask
            known = False
            while slots[slot] >= 0 and not known:
                known = True
                for q in range(width):
                    if out[slots[slot], q] != cuts[parent, q] + (1 if q == k else 0):
                        known = False
                        break
                if not known:
                    slot = (slot + 1) & mask
            if known:
                continue
            if written == len(out):
                return -1
            slots[slot] = written
            for q in range(width):
                out[written, q] = cuts[parent, q]
            out[written, k] += 1
            parents[written] = parent
            steps[written] = k
            written += 1
    return written


def clock_rows(processes: Integers, rows: Integers, cause_starts: Integers, causes: Integers, clocks: Integers) -> None:
    """Fill the row of every event, given in a causal order: its process and its row.

    The rows of the events that sent what event i received are `causes[cause_starts[i]:cause_starts[i + 1]]`. The row
    before that of an event is the state before it.
    """
    width = clocks.shape[1]
    for i in range(len(rows)):
        row = rows[i]
        for q in range(width):
            clocks[row, q] = clocks[row - 1, q]
        for place in range(cause_starts[i], cause_starts[i + 1]):
            cause = causes[place]
            for q in range(width):
                if clocks[cause, q] > clocks[row, q]:
                    clocks[row, q] = clocks[cause, q]
        clocks[row, processes[i]] += 1


def least_cuts(clocks: Integers, starts: Integers, lengths: Integers, following: Integers, out: Integers) -> None:
    """Write for each state of each process the least cut that includes it and in which every state is good.

    `following` has for each state the first good state from it on, one more than the last state if there is none. If
    there is no such cut, the row is -1. The cuts of one process only grow, so each search begins with the cut before.
    """
    width = len(lengths)
    for p in range(width):
        for state in range(lengths[p] + 1):
            row = starts[p] + state
            if state > 0:
                for q in range(width):
                    out[row, q] = out[row - 1, q]
                if out[row, p] < 0 or out[row, p] >= state:
                    continue
            out[row, p] = state
            moving = True
            while moving:
                moving = False
                for q in range(width):
                    good = following[starts[q] + out[row, q]]
                    if good > lengths[q]:
                        for r in range(width):
                            out[row, r] = -1
                        moving = False
                        break
                    out[row, q] = good
                    for r in range(width):
                        if clocks[starts[q] + good, r] > out[row, r]:
                            out[row, r] = clocks[starts[q] + good, r]
                            moving = True
