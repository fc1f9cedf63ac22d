"""Checkpoints: the state of the log at a position, so that readers need not start at entry 0 (S1)."""
