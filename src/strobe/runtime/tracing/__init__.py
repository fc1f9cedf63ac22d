"""The live trace recorder (R4): records the events of a process, and writes them as Parquet in the background."""
