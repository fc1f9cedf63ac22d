"""`strobe trace`: check, import, export and replay recorded runs, and search their consistent cuts."""
