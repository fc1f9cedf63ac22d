"""`strobe demo`: runs a bank of real processes, takes and judges snapshots, and kills one process."""

import logging
import shlex
import time
from collections.abc import Callable
from typing import Annotated

import msgspec
import typer

from strobe.causality.proof import verify
from strobe.cli.arguments.stores import fresh_store
from strobe.cli.demo.bank import BRANCHES, TOTAL, make_bank, total
from strobe.cli.demo.judge import MONEY, Judging
from strobe.cli.live.supervisor import Supervisor
from strobe.cli.live.up_display import rollback_text
from strobe.cli.live.up_session import POLL_EVERY_S, TICK_S
from strobe.cli.shell.commands import JsonOption, new_app
from strobe.cli.shell.output import (
    Column,
    ProgressLine,
    beside_document,
    count,
    print_json,
    print_line,
    print_lines,
    print_table,
    print_wrapped,
    program,
    python,
)
from strobe.cli.shell.waiting import interruptible
from strobe.errors import TransportError
from strobe.protocol import Snapshot, SnapshotId
from strobe.protocol.values.ids import short_names
from strobe.runtime.messages.api_documents import Status
from strobe.storage import Store
from strobe.storage.content.state_codec import decode_snapshot

app = new_app()

STORE = "./strobe-demo"
SYSTEM = "strobe.cli.demo.bank:bank"
VICTIM = "c"
"""The branch that is killed, when a third of the snapshots has been taken and Spark judges them."""
PATIENCE_S = 180.0
JUDGED_S_MAX = 90.0
"""On a slow machine, the branch is killed after this time even if Spark has not judged a snapshot yet."""
SHOWN_MAX = 10
"""More snapshots than this are only counted: the table shows those before and after the crash."""
AFTERWARDS = 4
"""Minimum number of snapshots after the rollback, to show that the bank continues."""


class DemoSnapshot(msgspec.Struct):
    """One snapshot of the bank. `balances` lacks branches that had left."""

    snapshot: str
    balances: dict[str, int]
    in_flight: int
    total: int
    proof: str
    ms: float
    verdict: str = ""
    reason: str | None = None


class Demo(msgspec.Struct):
    """The results of the demo."""

    store: str
    snapshots: list[DemoSnapshot] = []
    transfers_per_s: int = 0
    killed: str = ""
    rolled_back: str = ""
    aborted: int = 0

    @property
    def proofs_hold(self) -> int:
        return sum(row.proof == "holds" for row in self.snapshots)

    @property
    def shown(self) -> list[DemoSnapshot]:
        """The snapshots in the table: those around the crash, which separates the first two epochs."""
        before = [row for row in self.snapshots if SnapshotId.parse(row.snapshot).epoch == 1]
        first = max(0, min(len(before) - SHOWN_MAX + AFTERWARDS, len(self.snapshots) - SHOWN_MAX))
        return self.snapshots[first : first + SHOWN_MAX]

    @property
    def holds(self) -> bool:
        rows = self.snapshots
        verdicts = all(row.verdict == "holds" and row.total == TOTAL for row in rows)
        return verdicts and self.proofs_hold == len(rows) > 0


@app.command()
def demo(
    snapshots: Annotated[int, typer.Option(metavar="N", min=3, help="Minimum number of snapshots to take.")] = 10,
    store: Annotated[
        str, typer.Option(metavar="DIR", help="The store for the snapshots; one of an earlier demo is replaced.")
    ] = STORE,
    json: JsonOption = False,
) -> int:
    """Run a bank of four branches as real processes, kill one, and let Spark judge every snapshot as it commits.

    The branches send each other money over TCP all the time, and a snapshot is taken every second. A snapshot is right
    only if it has every branch and every transfer in flight: then the total is always the same. One branch is killed
    with SIGKILL. The system rolls back to its newest snapshot by itself; nothing is lost or applied twice. Meanwhile a
    streaming query judges each snapshot: its proof, and that the total has not changed.

    \b
    Example:
      strobe demo --snapshots 20
    """
    from strobe.spark.session.java import require_java

    require_java()  # before the bank runs, not after
    with ProgressLine() as progress, beside_document(json):
        found = Demo(fresh_store(store, "demo").url)
        # An interrupt breaks py4j's socket, and py4j would log a traceback.
        logging.getLogger().addHandler(logging.NullHandler())
        with Judging(found.store) as judging:
            with progress.ticking("Spark starts"):
                judging.wait_started(PATIENCE_S)
            print_line(f"a bank of {len(BRANCHES)} branches, each a process of its own; a snapshot every second")
            _run(found, snapshots, judging, progress)
            found.snapshots = _rows(found.store)
            with progress.ticking(
                f"{count(len(found.snapshots), 'snapshot')} stored; Spark is judging the last of them"
            ):
                _judge(found, judging)
        found.store = store
    if json:
        print_json({**msgspec.structs.asdict(found), "holds": found.holds})
    else:
        _print(found)
    return 0 if found.holds else 1


def _run(found: Demo, snapshots: int, judging: Judging, progress: ProgressLine) -> None:
    """Run the bank until it has this many snapshots, and kill a branch while they are being judged."""
    options = ["--interval", "1", "--listen", "127.0.0.1:0", "--api", "127.0.0.1:0"]
    with interruptible() as interrupted, Supervisor(SYSTEM, found.store, BRANCHES, options) as bank:
        bank.start()
        started, goal = time.monotonic(), snapshots
        while True:
            status = _look(bank)
            if interrupted:
                raise KeyboardInterrupt
            if time.monotonic() > started + PATIENCE_S:
                raise TransportError(f"the bank took too long; see its logs in {found.store}/run/log")
            if status is None:
                continue
            due = not found.killed and status.committed >= max(2, snapshots // 3)
            until = "; a branch is killed when Spark has judged the first" if due else f" of {goal}"
            progress.show(f"{count(status.committed, 'snapshot')}{until}", now=True)
            _note(found, status)
            judged = due and (judging.has_judged or time.monotonic() > started + JUDGED_S_MAX)
            if judged and bank.kill(VICTIM):
                found.killed = f"branch {VICTIM} was killed with SIGKILL after {count(status.committed, 'snapshot')}"
                print_line(found.killed)
            if not found.rolled_back:
                goal = max(snapshots, status.committed + AFTERWARDS)
            elif status.committed >= goal:
                break
        bank.stop()


def _look(bank: Supervisor) -> Status | None:
    """Keep the bank running, and return its status; None while its coordinator does not respond."""
    until_s = time.monotonic() + POLL_EVERY_S
    while time.monotonic() < until_s:
        bank.tick()
        time.sleep(TICK_S)
    try:
        return bank.client.status()
    except TransportError:
        return None


def _note(found: Demo, status: Status) -> None:
    found.aborted = status.aborted
    if not found.killed:
        found.transfers_per_s = round(sum(process.events_per_s for process in status.processes))
    if status.rollbacks and not found.rolled_back:
        rollback = status.rollbacks[-1]
        short = short_names([one.id for one in status.finished])
        restored = short(rollback.restored) if rollback.restored is not None else None
        found.rolled_back = rollback_text(msgspec.structs.replace(rollback, restored=restored))
        print_wrapped(found.rolled_back)


def _rows(store: str) -> list[DemoSnapshot]:
    opened = Store.open(store)
    return [_row(opened.load(name)) for _, name, _ in opened.list()]


def _row(snapshot: Snapshot) -> DemoSnapshot:
    bank = decode_snapshot(make_bank(), snapshot)
    balances = {name: account.balance for name, account in bank.states.items()}
    in_flight = sum(transfer.amount for transfer in bank.messages)
    proof = "holds" if verify(snapshot).holds else "violated"
    ms = (snapshot.completed_us - snapshot.started_us) / 1000
    return DemoSnapshot(str(snapshot.id), balances, in_flight, total(bank.states, bank.messages), proof, ms)


def _judge(found: Demo, judging: Judging) -> None:
    """Write Spark's verdicts into the rows once all have arrived."""
    verdicts = judging.wait({row.snapshot for row in found.snapshots}, PATIENCE_S)
    for row in found.snapshots:
        row.verdict, row.reason = verdicts.get(row.snapshot, ("", None))


def _print(found: Demo) -> None:
    print_line()
    name = short_names([row.snapshot for row in found.snapshots])
    shown = found.shown
    print_table(_columns(), [_cells(row, name) for row in shown])
    for row in found.snapshots:
        if row.reason and row.verdict != "holds":
            print_wrapped(f"{name(row.snapshot)}: {row.reason}")
    print_line()
    if len(shown) < len(found.snapshots):
        print_line(f"these are the {len(shown)} around the crash, of {count(len(found.snapshots), 'snapshot')}")
    print_line(f"about {found.transfers_per_s:,} events per second; {count(found.aborted, 'snapshot')} aborted")
    print_line(_last_line(found))
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


def _cells(row: DemoSnapshot, name: Callable[[str], str]) -> list[str]:
    balances = [str(row.balances.get(branch, "gone")) for branch in BRANCHES]
    numbers = [*balances, str(row.in_flight), str(row.total)]
    return [name(row.snapshot), *numbers, row.proof, row.verdict or "missing", f"{row.ms:.1f}"]


def _last_line(found: Demo) -> str:
    proofs = found.proofs_hold
    wrong = next((row.total for row in found.snapshots if row.total != TOTAL), None)
    total = f"total {TOTAL} = {TOTAL}" if wrong is None else f"total {wrong} instead of {TOTAL}"
    return f"{count(len(found.snapshots), 'snapshot')}, {count(proofs, 'proof')} hold{'s' * (proofs == 1)}, {total}"


def _print_next_steps(store: str) -> None:
    strobe, directory = program("strobe"), shlex.quote(store)
    print_line()
    print_line("Show the last snapshot, with every process and every message in flight:")
    print_line(f"  {strobe} snapshot show latest --store {directory}")
    print_line("Crash, delay and restart the same bank in the simulator, at 20 snapshots:")
    print_line(f"  {strobe} simulate {SYSTEM} --snapshots 20")
    print_line("Query the snapshots with Spark, in SQL:")
    print_lines(_indented(_query(store)))


def _query(store: str) -> str:
    """Return a command that runs a Spark query for the bank's total in each snapshot, in lines for 80 columns."""
    selects = MONEY.replace(" UNION", "\n    UNION")
    steps = (
        "from strobe.spark import *; spark = local_session(); \\",
        f'  tables(spark, {msgspec.json.encode(store).decode()}); spark.sql("""',
        "  SELECT snapshot_id, sum(money) AS total FROM (",
        f"    {selects}",
        '  ) GROUP BY 1 ORDER BY 1""").show(99, False)',
    )
    return f"{python()} -c {shlex.quote(chr(10).join(steps))}"


def _indented(lines: str) -> str:
    return "".join(f"  {line}" for line in lines.splitlines(keepends=True))
