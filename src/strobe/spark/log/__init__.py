"""The log and blobs of a store, as Spark's driver and workers read them: by position, verified, in even shares.

In: the URL of a store and a range of log positions. Out: partitions for tasks, and the verified bytes of commits and
blobs. `spark_errors` tells failures of Spark itself from findings about a snapshot.

Public: `offsets`, `partitioning`, `snapshot_reader`, `spark_errors`.
"""
