"""`strobe trace`: checks, imports, exports and replays recorded runs, and searches their consistent cuts."""
