"""From one committed snapshot to the rows of each table, as Arrow batches. No Spark session is needed here."""
