"""Stores and traces as DataFrames: the data source `strobe`, and the tables of a store or of some positions (D1).

In: a URL and options, checked before anything is read. Out: DataFrames whose partitions are read in workers
(`reader`). `clusters` gives the session on which they run.

Public: `by_position`, `clusters`, `data_source.StrobeSource`, `store`.
"""
