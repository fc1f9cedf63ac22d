"""Going back to a snapshot: which one, whether it fits, and one process's part of it, decoded (R1, E9).

In: a store and a system. Out: a `Restored` for each process, or an error that says why that snapshot does not fit.
"""
