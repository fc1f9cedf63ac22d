"""A program of a user's with its own Spark session: counts rows of the store, then runs the pipeline in that session.

python -m tests.spark.session_program STORE SESSION WORDS...

SESSION has the arguments of `session_for` as JSON; WORDS are those of `strobe`. The first line of output has the counts
as JSON. The output of the command follows.
"""

import json
import sys

from pyspark.sql import SparkSession

from strobe.cli import main
from strobe.spark import session_for, tables, verify_proofs


def counts(spark: SparkSession, store: str) -> dict[str, int]:
    """Count the store's rows through each API."""
    loaded = spark.read.format("strobe").option("table", "snapshots").load(store)
    found = tables(spark, store)
    proofs = verify_proofs(found).groupBy("verdict").count().collect()
    (balances,) = spark.sql("SELECT count(*), sum(state:balance::bigint) FROM process_states").collect()
    counted = {
        "snapshots": loaded.count(),
        "process_states": balances[0],
        "balances": balances[1],
        "channel_messages": found.channel_messages.count(),
        "events": found.events.count(),
        **{f"proofs {verdict}": count for verdict, count in proofs},
    }
    found.unpersist()
    return counted


if __name__ == "__main__":
    store, session, *words = sys.argv[1:]
    sys.stdout.write(json.dumps(counts(session_for(**json.loads(session)), store)) + "\n")
    sys.stdout.flush()
    sys.exit(main(words))
