"""Checkpoints: the state of the log at a position, so that readers need not start at entry 0 (S1).

In: the entries of a log, one by one (`checkpoint_writer`). Out: the `LogState` at a position (`checkpoint_files`),
with its commits in segments of columns. Entries that a checkpoint covers can then be removed (`removed_entries`).

Public: `checkpoint_collection`, `checkpoint_files`, `checkpoint_integrity`, `checkpoint_writer`, `commit_segments`,
`folded_log`, `removed_entries`.
"""
