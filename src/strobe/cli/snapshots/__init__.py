"""The commands that inspect and maintain a store: `strobe snapshot`, `strobe keys`, `strobe store repair`.

In: a store, and the names of snapshots. Out: tables, reports or JSON; the work is in `strobe.storage`. `snapshot
take` also asks a running coordinator.

Public: `keys`, `snapshot`, `store_repair`, `verify`.
"""
