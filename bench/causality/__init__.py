"""Measurements of the proof and of the lattice of consistent cuts."""
