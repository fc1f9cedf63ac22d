# Audit a store of snapshots with Spark, as notebook cells (for editors that support `# %%`) or as a program:
#
#     make demo                                  # leaves a store in ./strobe-demo
#     .venv/bin/python examples/audit.py         # or: examples/audit.py DIRECTORY
#
# Needs strobe-snapshots[spark]. The plot needs matplotlib, and is skipped without it.

# %% A store
import sys

from strobe.spark import local_session, tables, verify_proofs

# In a notebook, sys.argv has the kernel's own arguments: an option and a JSON file.
given = [argument for argument in sys.argv[1:] if not argument.startswith("-") and not argument.endswith(".json")]
store = given[0] if given else "./strobe-demo"
spark = local_session()
snapshots = tables(spark, store)  # DataFrames, and views of the same names for SQL
spark.sql("SELECT snapshot_id, started_at, protocol, state_bytes, in_flight_bytes FROM snapshots").show(5, False)

# %% Balances, by field: state is a VARIANT
balances = spark.sql("""
    SELECT snapshot_id, process, state:balance::bigint AS balance
    FROM process_states
""")
balances.groupBy("snapshot_id").pivot("process").sum("balance").orderBy("snapshot_id").show(5, False)

# %% Money in flight over time: it belongs to no process, but counts in the total
in_flight = spark.sql("""
    SELECT started_at, coalesce(sum(payload:amount::bigint), 0) AS money
    FROM snapshots LEFT JOIN channel_messages USING (snapshot_id)
    GROUP BY started_at
    ORDER BY started_at
""").toPandas()
print(in_flight.to_string(index=False))

# %% The same as a plot
try:
    import matplotlib
except ModuleNotFoundError:
    print("no plot without matplotlib: pip install matplotlib")
else:
    matplotlib.use("agg")  # a file, not a window; leave this out in a notebook
    from matplotlib import pyplot

    figure, axes = pyplot.subplots()
    axes.step(in_flight["started_at"], in_flight["money"], where="post", marker="o")
    axes.set(title="money in flight", ylabel="amount", ylim=(0, None))
    figure.autofmt_xdate()
    figure.savefig("money-in-flight.png", dpi=120)

# %% Is every snapshot a consistent cut? The proofs, recomputed from the stored bytes
verify_proofs(snapshots).groupBy("verdict").count().show()

# %% Your own invariant: a query for the rows that violate it. No rows: it holds
conserved = """-- name: money is conserved
-- description: balances and transfers in flight always come to 800
SELECT snapshot_id, sum(money) AS total
FROM (
    SELECT snapshot_id, state:balance::bigint AS money FROM process_states
    UNION ALL
    SELECT snapshot_id, payload:amount::bigint FROM channel_messages
)
GROUP BY snapshot_id
HAVING total <> 800
"""
violations = spark.sql(conserved).collect()
print(violations or "money is conserved in every snapshot")

# %% From a file, the pipeline checks it on every snapshot after its commit:
#
#     strobe pipeline run --store ./strobe-demo --invariants ./invariants --to ./verdicts
from pathlib import Path

Path("invariants").mkdir(exist_ok=True)
Path("invariants/conserved.sql").write_text(conserved)
