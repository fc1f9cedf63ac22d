"""The entries of a log: the file of one entry, and the state that entries add up to (`LogState`).

In: the bytes of entries, in order. Out: which snapshots are complete, the view, the epoch, the term; and what is
missing or cannot be read (`gaps`, `fences`).

Public: `commit_decoder`, `ended_ids`, `fences`, `gaps`, `log_file`, `log_state`.
"""
