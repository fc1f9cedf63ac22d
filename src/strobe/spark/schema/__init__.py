"""The tables' names, columns and types, for Spark and for Arrow. All of `strobe.spark` builds on these."""
