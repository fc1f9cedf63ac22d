"""A Spark to work with: the embedded session, the Java it needs, and this package for a cluster's executors."""
