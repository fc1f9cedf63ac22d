"""Restoring a snapshot: which one, whether it fits, and one process's part of it, decoded (R1, E9).

Input: a store and a system. Output: a `Restored` for each process, or why the snapshot does not fit, as an error.
"""
