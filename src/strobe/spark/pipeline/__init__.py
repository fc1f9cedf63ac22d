"""The streaming pipeline (D2): it judges each snapshot after its commit, and writes each verdict exactly once.

In: commits of the log (`commit_source`), as micro-batches. Workers and the user's `invariants` check each `batch`.
Out: the tables `verdicts`, `violations` and `quarantine` (`output_tables`), and `alerts`.

Public: `alerts`, `invariants`, `output_tables`, `query`, `results`.
"""
