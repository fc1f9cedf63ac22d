"""Checkpoints of the log: what its entries add up to at a position, so that no reader starts at entry 0 (S1)."""
