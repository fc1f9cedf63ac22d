"""The lattice of consistent cuts: counting and walking it, and whether a condition possibly or definitely held (G3).

    count_cuts(trace)
    possibly(trace, 'a.waiting and b.waiting and in_flight() == 0')
    definitely(trace, 'a.leader and b.leader')

In: a trace and a condition. Out: a `CutCount`, or a `Detection` with a cut that shows it. The search itself is compiled
(extra `lattice`: numpy and numba), and imported when it is first needed.
"""

from strobe.causality.lattice.detection import Detection, definitely, possibly
from strobe.causality.lattice.enumeration import CutCount, consistent_cuts, count_cuts

__all__ = ["CutCount", "Detection", "consistent_cuts", "count_cuts", "definitely", "possibly"]
