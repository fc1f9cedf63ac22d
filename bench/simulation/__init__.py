"""Measurements of the simulator and the explorer."""
