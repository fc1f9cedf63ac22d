"""From one committed snapshot to the rows of each table, as Arrow batches, with as little Python per row as possible.

In: a `CommittedSnapshot`, from a store or from memory. Out: columns of `strobe.spark.schema`. Needs no Spark session.

Public: `builders`, `column_limits`, `committed_snapshot`, `events`.
"""
