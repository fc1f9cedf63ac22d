"""A program of a user's on a session of its own making: asks the store, and then runs the pipeline in that session.

python -m tests.spark.session_program STORE SESSION WORDS...

SESSION is what `session_for` is given, as JSON; WORDS are those of `strobe`. It prints what it has counted as one line
of JSON, and then whatever the command does.
"""

import json
import sys

from pyspark.sql import SparkSession

from strobe.cli import main
from strobe.spark import session_for, tables, verify_proofs


def counts(spark: SparkSession, store: str) -> dict[str, int]:
    """What there is in the store, by each of the ways to ask."""
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
