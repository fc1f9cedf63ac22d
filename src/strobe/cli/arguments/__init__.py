"""What is named on a command line: a system, a store, the options of a live run, a running coordinator."""
