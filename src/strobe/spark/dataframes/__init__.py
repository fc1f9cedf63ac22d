"""Stores and traces as DataFrames: the data source `strobe`, and the tables of a store or of some positions (D1)."""
