"""Planned restarts (E11): what a process hands over to its successor, its file in the store, and how both sides use it.

In: a process that has stopped between two events. Out: its successor, which goes on in the same epoch.

Public: `document`, `handing_over`, `origin`.
"""
