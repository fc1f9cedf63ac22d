"""Looking at stored snapshots: verification in levels, the fast proof, differences, keys and signatures."""
