"""From one committed snapshot to the rows of each table, as Arrow batches. Needs no Spark session."""
