"""`strobe trace`: checks, imports, exports and replays recorded runs, and searches their consistent cuts.

In: a trace file, the recording of a live run or a log of vector clocks. Out: reports, other formats, diagrams.

Public: `trace`.
"""
