"""The store: snapshots by name, commits, retention, garbage collection, integrity and repair."""
