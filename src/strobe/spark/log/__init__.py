"""How Spark's driver and workers read the log and blobs of a store: by position, verified, in even shares."""
