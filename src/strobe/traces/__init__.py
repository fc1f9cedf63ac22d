"""Traces of live processes on disk (docs/trace.md): their segments, and reading them as one trace.

In: notes of events, from the live runtime (`strobe.runtime.tracing`). Out: segments in Parquet, and traces read from
them for the command line and Spark. Needs pyarrow.

Public: `descriptions`, `drawing`, `notes`, `reading`, `rows`, `segments`.
"""
