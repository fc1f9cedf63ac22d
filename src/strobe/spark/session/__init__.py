"""Spark sessions: the embedded one, the Java it needs, and shipping this package to a cluster's executors.

In: nothing but the settings of a user. Out: a session that is ready, or an error that says what to install. Spark is
started on first use, and never by an import.

Public: `embedded`, `java`, `shipping`.
"""
