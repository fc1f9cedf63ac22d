"""The log and the blobs of a store as Spark's driver and workers read them: by position, verified, in even shares."""
