"""Measurements of tables, the streaming pipeline and predicates on Spark."""
