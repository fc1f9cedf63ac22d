"""Log entries: the file of one entry, the state that entries add up to (`LogState`), fences, and gaps."""
