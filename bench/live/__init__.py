"""Measurements of live systems: processes, links, snapshots and keyed state."""
