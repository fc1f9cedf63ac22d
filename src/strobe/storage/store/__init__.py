"""The store as a whole: its snapshots by name, commits, retention, garbage collection, integrity and repair.

In: snapshots and entries from a coordinator, requests from commands. Out: snapshots, loaded and verified, and files
that are kept exactly as long as they are needed. `store.Store` is the entry.

Public: `garbage_collection`, `hand_overs`, `integrity`, `optimistic_append`, `repair`, `retention`,
`snapshot_names`, `store.Store`.
"""
