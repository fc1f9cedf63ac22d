"""`strobe demo`: a bank that never stops, photographed under faults, its snapshots proved here and again by Spark."""

import logging
import shlex
from collections import Counter
from typing import Annotated

import msgspec
import typer

from strobe.causality.proof import verify
from strobe.cli.commands import JsonOption, new_app
from strobe.cli.demo_bank import BRANCHES, TOTAL, make_bank, total
from strobe.cli.output import Column, Progress, beside_document, count, print_json, print_table, say, say_wrapped
from strobe.cli.programs import program, python
from strobe.cli.runs import faults_text
from strobe.cli.stores import fresh_store
from strobe.protocol import Policy, Snapshot
from strobe.simulation.checkers import all_checkers
from strobe.simulation.faults import Faults
from strobe.simulation.states import decode_snapshot
from strobe.simulation.world import Violated, World
from strobe.storage import Store

app = new_app()

SEED = 93
"""A run in which much happens: a branch leaves and comes back, branches and the coordinator crash."""
STORE = "./strobe-demo"
POLICY = Policy(interval_us=100_000, pause_us_min=30_000, overlapping_max=1, timeout_us=400_000, backoff_us=10_000)
"""One snapshot at a time with pauses between, so that the run can end with as many as were asked for."""

AUDIT = (
    "SELECT snapshot_id, sum(money) AS total FROM ("
    "SELECT snapshot_id, state:balance::int AS money FROM process_states UNION ALL "
    "SELECT snapshot_id, payload:amount::int FROM channel_messages) GROUP BY 1 ORDER BY 1"
)


class Row(msgspec.Struct):
    """One snapshot of the bank. `balances` lacks the branches that had left."""

    snapshot: str
    balances: dict[str, int]
    in_flight: int
    total: int
    proof: str
    ms: float
    verdict: str = ""
    reason: str | None = None


class Demo(msgspec.Struct):
    """What the demo has found."""

    seed: int
    faults: Faults
    store: str
    snapshots: list[Row]
    injected: Counter[str]
    aborted: int
    retried: int
    violations: list[Violated]

    @property
    def proofs_hold(self) -> int:
        return sum(row.proof == "holds" for row in self.snapshots)

    @property
    def holds(self) -> bool:
        rows = self.snapshots
        verdicts = all(row.verdict == "holds" and row.total == TOTAL for row in rows)
        return verdicts and self.proofs_hold == len(rows) > 0 and not self.violations


@app.command()
def demo(
    seed: Annotated[int, typer.Option(metavar="N", help="The same seed gives the same run.")] = SEED,
    snapshots: Annotated[int, typer.Option(metavar="N", min=1, help="How many snapshots to take.")] = 10,
    store: Annotated[
        str, typer.Option(metavar="DIR", help="Where to keep them; what an earlier demo left there goes.")
    ] = STORE,
    json: JsonOption = False,
) -> int:
    """Run a bank of four branches under faults, and verify its snapshots twice: by their proofs, and with Spark.

    The branches send each other money all the time. A snapshot is right only if it has every branch and every transfer
    on its way: then the total is always the same.

    \b
    Example:
      strobe demo --seed 7 --snapshots 20
    """
    from strobe.spark.java import require_java

    require_java()  # before the bank runs, not after
    faults = Faults.parse("all")
    with Progress() as progress, beside_document(json):
        kept = fresh_store(store, "demo")
        say_wrapped(f"seed {seed}, faults: {faults.describe()}")
        found = _run(seed, snapshots, faults, kept, progress)
        found.store = store
        with progress.ticking(f"{count(len(found.snapshots), 'snapshot')} stored; Spark starts, and verifies them"):
            _judge(found)
    if json:
        print_json({**msgspec.structs.asdict(found), "holds": found.holds})
    else:
        _print(found)
    return 0 if found.holds else 1


def _run(seed: int, snapshots: int, faults: Faults, store: Store, progress: Progress) -> Demo:
    """Run the bank, then read back from the store what the snapshots have."""
    world = World(make_bank(), seed, faults=faults, policy=POLICY, store=store, checkers=all_checkers())
    world.on_commit = lambda _: progress.show(f"{len(world.committed)} of {count(snapshots, 'snapshot')}", now=True)
    world.run(snapshots - 1)  # the last one is taken when all faults have ended
    rows = [_row(store.load(name)) for _, name, _ in store.list()]
    return Demo(seed, faults, store.url, rows, world.injected, world.aborted, world.retried, world.violations)


def _row(snapshot: Snapshot) -> Row:
    accounts, transfers = decode_snapshot(make_bank(), snapshot)
    balances = {name: account.balance for name, account in accounts.items()}
    in_flight = sum(transfer.amount for transfer in transfers)
    proof = "holds" if verify(snapshot).holds else "violated"
    ms = (snapshot.completed_us - snapshot.started_us) / 1000
    return Row(str(snapshot.id), balances, in_flight, total(accounts, transfers), proof, ms)


def _judge(found: Demo) -> None:
    """Write Spark's verdicts into the rows."""
    from strobe.spark import verdicts

    # An interrupt breaks into py4j's socket, and py4j logs a traceback for what is no fault.
    logging.getLogger().addHandler(logging.NullHandler())
    rows = {row.snapshot: row for row in found.snapshots}
    for judged in verdicts(found.store):
        row = rows[judged.snapshot_id]
        # A snapshot has one verdict for each check: the first that does not hold is the one to show.
        if row.verdict in ("", "holds"):
            row.verdict, row.reason = judged.verdict, judged.reason


def _print(found: Demo) -> None:
    say()
    print_table(_columns(), [_cells(row) for row in found.snapshots])
    for row in found.snapshots:
        if row.reason and row.verdict != "holds":
            say_wrapped(f"{row.snapshot}: {row.reason}")
    for violation in found.violations:
        say_wrapped(str(violation))
    outcomes = f"{count(found.aborted, 'snapshot')} aborted, {found.retried} of these retried"
    say()
    say_wrapped(f"faults injected: {faults_text(found.injected)}; {outcomes}")
    say(_last_line(found))
    if found.holds:
        _print_next_steps(found.store)


def _columns() -> list[Column]:
    numbers = (*BRANCHES, "in flight", "total")
    middle = [Column(title, number=True) for title in numbers]
    return [
        Column("snapshot", name=True),
        *middle,
        Column("proof", name=True),
        Column("verdict", name=True),
        Column("ms", number=True),
    ]


def _cells(row: Row) -> list[str]:
    balances = [str(row.balances.get(branch, "gone")) for branch in BRANCHES]
    numbers = [*balances, str(row.in_flight), str(row.total)]
    return [row.snapshot, *numbers, row.proof, row.verdict or "missing", f"{row.ms:.1f}"]


def _last_line(found: Demo) -> str:
    proofs = found.proofs_hold
    wrong = next((row.total for row in found.snapshots if row.total != TOTAL), None)
    total = f"total {TOTAL} = {TOTAL}" if wrong is None else f"total {wrong} instead of {TOTAL}"
    return f"{count(len(found.snapshots), 'snapshot')}, {count(proofs, 'proof')} hold{'s' * (proofs == 1)}, {total}"


def _print_next_steps(store: str) -> None:
    directory = shlex.quote(store)
    say()
    say("Look at one of them, every process and every message in flight:")
    say(f"  {program('strobe')} snapshot show latest --store {directory}")
    say("Ask a question of your own, in SQL:")
    say(f"  {_query(store)}")


def _query(store: str) -> str:
    """Return a command that asks Spark for the audit of the bank: all its money, snapshot by snapshot."""
    directory = msgspec.json.encode(store).decode()
    steps = (
        "from strobe.spark import *",
        "spark = local_session()",
        f"read_tables(spark, {directory})",
        f'spark.sql("{AUDIT}").show(99, False)',
    )
    return f"{python()} -c {shlex.quote('; '.join(steps))}"
