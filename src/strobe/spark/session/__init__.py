"""Spark sessions: the embedded one, the Java it needs, and shipping this package to a cluster's executors."""
