"""Traces of live processes as they lie on disk (docs/trace.md): their segments, and a whole trace read from them.

The live runtime writes them (`strobe.runtime.tracing`); the command line and Spark read them. Needs pyarrow.
"""
