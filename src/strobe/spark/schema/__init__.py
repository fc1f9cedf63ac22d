"""The tables' names, columns and types, for Spark and for Arrow. Everything else in this package builds on these."""
