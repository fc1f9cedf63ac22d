"""The live trace recorder (R4): notes what a process does, and writes it as Parquet segments beside it."""
