"""The streaming pipeline (D2): each snapshot of a store judged as it commits, its verdicts written exactly once.

In: commits of the log (`commit_source`), as micro-batches. Each `batch` is checked by workers and by the user's
`invariants`. Out: the tables `verdicts`, `violations` and `quarantine` (`output_tables`), and `alerts`.
"""
