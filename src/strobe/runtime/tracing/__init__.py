"""The live trace recorder (R4): records the events of a process, and writes them as Parquet in the background.

In: what a process receives, sends and runs, noted by its host. Out: segments on disk, which `strobe.traces` reads. A
process never waits for them: beyond the size limit the oldest segments are removed, or recording pauses.

Public: `recorder`.
"""
