"""Inspection of stored snapshots: verification levels, the fast proof, differences, keys and signatures."""
