"""Restoring a snapshot: which one, whether it fits, and one process's part of it, decoded (R1, E9).

In: a store and a system. Out: a `Restored` for each process, or why the snapshot does not fit, as an error.

Public: `fragment_loader`, `initial_process.InitialProcess`, `restore_point`, `topology`, `trial_restore`.
"""
