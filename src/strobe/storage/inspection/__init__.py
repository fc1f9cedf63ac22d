"""Inspection of stored snapshots: verification by levels (S4), the fast proof, differences, keys.

Nothing is changed here. In: a `Store` and the names of snapshots. Out: reports of what was checked and what was
found, for commands and the API.

Public: `diff`, `fast_proof`, `keys`, `round_trip`, `state_path`, `value_diff`, `verification`.
"""
