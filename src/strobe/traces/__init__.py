"""Traces of live processes on disk (docs/trace.md): their segments, and reading them as one trace.

The live runtime writes them (`strobe.runtime.tracing`); the command line and Spark read them. Needs pyarrow.
"""
