"""One entry of the log as a file, what the entries add up to (`LogState`), fences, and entries that are missing."""
