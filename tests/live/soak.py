"""One long run with every kind of fault mixed at random: `python -m tests.live.soak`, or `make soak`.

Faults are injected one after the other, and overlap. From time to time every fault that can be undone is undone, and
the system must recover: all processes run, and snapshots are committed. Each complete snapshot is checked: its bytes,
its proof, and that it has every message exactly once. In the end the released files must match the states byte for
byte, and exactly the blobs that were damaged in the store must be found.

The seed determines the order of the faults. Their effect also depends on the machine, so a violation may not come again
with the same seed; but it is reported, and all files are kept.
"""

import argparse
import heapq
import os
import random
import resource
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path

from tests.live.support import fused, ledger
from tests.live.support.checks import assert_nothing_left
from tests.live.support.harness import LEDGER, MANY_ROLLBACKS, ROOT, running
from tests.live.support.stores import IN_ITS_PLACE, moved_away, older_copy
from tests.live.support.strangers import HALF_OPEN, Crowd, garbage, throw

from strobe.causality.proof import verify
from strobe.cli.live.child import COORDINATOR
from strobe.errors import SnapshotError, StoreCorrupt, StrobeError
from strobe.protocol.values.log_entries import Pin
from strobe.storage import Store, append_when
from strobe.storage.content.blobs import blob_name
from strobe.storage.content.manifests import blobs_of
from strobe.storage.inspection.verification import Level, StoreLevels

NAMES = ("a", "b", "c", "d")
LINKS = [f"{p}->{q}" for p in NAMES for q in NAMES if p != q]
SYSTEMS = ("mixed", "mixed_unordered")
CROWD = 400
SETTLE_EVERY_S = 4.0
CHECKPOINT_EVERY = 32
"""Log entries between two checkpoints: older entries are removed all the time."""
PROGRESS_EVERY_S = 5.0
NARROW = {"node.recording_bytes_max": 200_000, "node.spill_bytes_max": 500_000, "node.patience_s": 2}
"""Low limits, so that a blocked link makes recordings spill and give up, and nodes reach their time limits."""
MEMORY_BYTES_MAX = 250_000_000
"""At any moment, even if links are blocked and many messages wait."""
MEMORY_GROWTH_BYTES_MAX = 30_000_000
"""From the median of the first third of a run to that of the last third."""
DESCRIPTORS_MORE_MAX = 30
RARE_S_MAX = 300.0
"""How much longer a run may take until there were enough faults of each kind."""
NEWEST_UNHARMED = 10
"""The newest snapshots that are never damaged, because a rollback may need them."""


class Violation(AssertionError):
    """A promise was broken."""


class Soak:
    """A running system, and the faults injected into it."""

    def __init__(self, live, system, seed, output, show):
        self.live = live
        self.system = system
        self.output = output
        self.chance = random.Random(seed)
        self.injected = Counter()
        self.survived = Counter()
        self.checked = {}
        self.damaged = set()
        self.messages = 0
        self.memory = []
        self._descriptors = {}
        self.lines = self.committed = self.aborted = self.rollbacks = 0
        self._show = show
        self._undoing = []
        self._number = 0
        self._said_s = 0.0
        self._began_s = time.monotonic()
        # The relative frequency of each fault, and the kinds that it counts as.
        self._faults = {
            self.reset_links: (8, ["links reset"]),
            self.reset_control: (3, ["control connections reset"]),
            self.throw_garbage: (6, ["garbage thrown"]),
            self.crowd_port: (1, ["ports crowded"]),
            self.stop: (5, ["nodes stopped", "coordinator stopped"]),
            self.block_link: (3, ["links blocked"]),
            self.block_control: (1, ["control connections blocked"]),
            self.slow_link: (2, ["links slowed"]),
            self.kill_node: (2, ["nodes killed"]),
            self.kill_coordinator: (1, ["coordinator killed"]),
            self.kill_several: (0.5, []),
            self.kill_judge: (1, ["judges killed"]),
            self.take_over: (0.5, ["coordinator taken over"]),
            self.fill_disk: (1, ["disks full"]),
            self.take_store_away: (1, ["stores moved away"]),
            self.put_back_older_copy: (1, ["older copies", "newest entries missing"]),
            self.restore: (0.5, ["rollbacks asked for"]),
            self.leave_or_join: (2, ["leaves", "joins"]),
            self.damage_blob: (0.5, ["blobs damaged"]),
        }

    @property
    def kinds(self):
        return {kind for _, kinds in self._faults.values() for kind in kinds}

    def run(self, seconds, faults, each):
        """Inject faults for `seconds`, at least `faults` of them, and at least `each` of every kind.

        From time to time, undo them and check that the system recovers.
        """
        deadline, settle_s = time.monotonic() + seconds, time.monotonic() + SETTLE_EVERY_S
        last_s = deadline + RARE_S_MAX
        while time.monotonic() < deadline or self.injected.total() < faults or self._rare(each):
            # Half of the time, choose among the faults that have been rare so far.
            rare = self._rare(each) if self.chance.random() < 0.5 else []
            if rare and time.monotonic() > last_s:
                raise Violation(f"of some kinds of faults there were too few: {self.injected}")
            kinds = rare or list(self._faults)
            self.chance.choices(kinds, [self._faults[kind][0] for kind in kinds])[0]()
            self._pass_time(self.chance.uniform(0, 0.25))
            if time.monotonic() >= settle_s:
                self.settle()
                settle_s = time.monotonic() + SETTLE_EVERY_S
        self.settle()
        self.live.wait_released(self.system, self.live.last_snapshot(), self.output)

    def _rare(self, least):
        """Return the faults of which some kind has been injected less than `least` times."""
        return [
            fault for fault, (_, kinds) in self._faults.items() if any(self.injected[kind] < least for kind in kinds)
        ]

    # Faults

    def reset_links(self):
        self._count("links reset", self.live.proxy.reset(*self.chance.sample(LINKS, self.chance.randint(1, 6))))

    def reset_control(self):
        self._count("control connections reset", self.live.proxy.reset(f"control {self.chance.choice(NAMES)}"))

    def throw_garbage(self):
        address = self.chance.choice(self.live.proxy.addresses())
        for _ in range(5):
            self._count("garbage thrown", throw(address, garbage(self.chance)))

    def crowd_port(self):
        """Open more connections than a port allows, none of which ever completes a request."""
        address = self.chance.choice((self.live.client.api, self.live.supervisor.listen))
        crowd = Crowd(address, CROWD, *HALF_OPEN[self.chance.choice(list(HALF_OPEN))])
        crowd.press()
        crowd.press()
        self._count("ports crowded", 1)
        self._undo_after(self.chance.expovariate(2), crowd.leave)

    def stop(self):
        name = self.chance.choice((*NAMES, COORDINATOR))
        kind = "coordinator stopped" if name == COORDINATOR else "nodes stopped"
        self._count(kind, self.live.supervisor.kill(name, signal.SIGSTOP))
        self._undo_after(self.chance.expovariate(2), lambda: self.live.supervisor.kill(name, signal.SIGCONT))

    def block_link(self):
        link = self.chance.choice(LINKS)
        self.live.proxy.block(link)
        self._count("links blocked", 1)
        self._undo_after(self.chance.expovariate(2), lambda: self.live.proxy.unblock(link))

    def block_control(self):
        """Block a control connection in both directions, without closing it."""
        name = f"control {self.chance.choice(NAMES)}"
        self.live.proxy.block(name)
        self._count("control connections blocked", 1)
        self._undo_after(self.chance.expovariate(1), lambda: self.live.proxy.unblock(name))

    def slow_link(self):
        link = self.chance.choice(LINKS)
        self.live.proxy.slow(20_000, link)
        self._count("links slowed", 1)
        self._undo_after(self.chance.expovariate(1), lambda: self.live.proxy.slow(None, link))

    def kill_node(self):
        self._count("nodes killed", self.live.supervisor.kill(self.chance.choice(NAMES)))

    def kill_coordinator(self):
        self._count("coordinator killed", self.live.supervisor.kill(COORDINATOR))

    def kill_judge(self):
        pid = self.live.judge_pid()
        with suppress(ProcessLookupError):
            if pid is not None:
                os.kill(pid, signal.SIGKILL)
                self._count("judges killed", 1)

    def take_over(self):
        self._count("coordinator taken over", self.live.take_over())

    def kill_several(self):
        for name in self.chance.sample((*NAMES, COORDINATOR), 3):
            kind = "coordinator killed" if name == COORDINATOR else "nodes killed"
            self._count(kind, self.live.supervisor.kill(name))

    def fill_disk(self):
        """Let no file of a program grow any more."""
        pid = self.live.supervisor.pid(self.chance.choice((*NAMES, COORDINATOR)))
        if pid is not None and limit_files(pid, 0):
            self._count("disks full", 1)
            self._undo_after(self.chance.expovariate(2), lambda: limit_files(pid, resource.RLIM_INFINITY))

    def take_store_away(self):
        """Move the store away for a while and back; a program may be killed during that time.

        In its place is nothing, an empty directory or another store, and nothing may be written there.
        """
        victim = self.chance.choice((None, *NAMES, COORDINATOR, COORDINATOR, COORDINATOR))
        with moved_away(self.live.store, self.chance.choice(list(IN_ITS_PLACE))):
            if victim is not None:
                kind = "coordinator killed" if victim == COORDINATOR else "nodes killed"
                self._count(kind, self.live.supervisor.kill(victim))
            self._pass_time(self.chance.uniform(0.1, 1.5))
        self._count("stores moved away", 1)

    def put_back_older_copy(self):
        """Let the store be an older copy of its log, or lack its newest entries; maybe kill the coordinator."""
        status = self.live.status()  # it has the newest known entry, which `strobe up` notes too
        if status is None or status.last_entry is None or self.live.supervisor.pid(COORDINATOR) != status.pid:
            return
        kind = self.chance.choice(["older copies", "newest entries missing"])
        end = status.last_entry.position - self.chance.randint(0, 5)
        with older_copy(self.live.store, end, log_only=kind == "older copies"):
            if self.chance.random() < 0.7:
                self._count("coordinator killed", self.live.supervisor.kill(COORDINATOR))
            self._pass_time(self.chance.uniform(0.1, 1.5))
        self._count(kind, 1)

    def restore(self):
        self._ask("rollbacks asked for", lambda: self.live.client.restore(timeout_s=0.5))

    def leave_or_join(self):
        child = self.live.supervisor._children["d"]
        if child.ended and child.process is None:
            self.live.start_again("d")
            self._count("joins", 1)
        else:
            self._ask("leaves", lambda: self.live.client.leave("d"))

    def damage_blob(self):
        """Change a byte of an old snapshot. It is pinned first, so that the damage can be found in the end."""
        store = Store.open(self.live.store)
        candidates = self._damageable(store)
        if not candidates:
            return
        name, blob = self.chance.choice(candidates)
        pin = Pin(name, True, time.time_ns() // 1000)
        if append_when(store, lambda state: pin if name in state.committed else None) is None:
            return  # retention has removed it in between
        with (self.live.store / blob).open("r+b") as file:
            first = file.read(1)
            file.seek(0)
            file.write(bytes([first[0] ^ 1]))
        self.damaged.add(blob)
        self._count("blobs damaged", 1)

    def _damageable(self, store):
        """Return old snapshots, each with a blob that no new, open or unchecked snapshot shares.

        A snapshot shares blobs only with its parent, the newest complete snapshot at its beginning.
        """
        listed, state = store.list(), store.state()
        newest = {name for _, name, _ in listed[-NEWEST_UNHARMED:]}
        needed = [manifest for _, name, manifest in listed if name in newest or name not in self.checked]
        needed += [parent for opened in state.open.values() if (parent := state.parent_of(opened)) is not None]
        out = self.damaged | {blob_name(ref) for manifest in needed for ref in blobs_of(manifest)}
        found = ((name, ref) for _, name, manifest in listed for ref in blobs_of(manifest) if ref.bytes)
        return [(name, blob_name(ref)) for name, ref in found if blob_name(ref) not in out]

    # Recovery

    def settle(self):
        """Undo what can be undone; then all processes must run and snapshots commit. Check these."""
        while self._undoing:
            self._undo_next()
        self.live.wait_running()
        # A requested rollback may come only now, and need a process that has left since.
        self.live.wait_committed(2, between=self.live.status)
        self.survived = self.injected.copy()
        # A killed program is restarted. One that ends by itself with another code than 0 shows a bug.
        if odd := [(name, code) for name, code in self.live.gone if code not in (0, -signal.SIGKILL)]:
            raise Violation(
                f"ended by themselves, with these codes: {odd}; see their logs in {self.live.store}/run/log"
            )
        self.check_snapshots()
        self.check_verdicts()
        self.check_footprints()

    def check_snapshots(self):
        """Check every new complete snapshot."""
        store = Store.open(self.live.store)
        for _, name, _ in store.list():
            if name in self.checked:
                continue
            try:
                snapshot = store.load(name)
            except (SnapshotError, StoreCorrupt):
                if name in {known for _, known, _ in Store.open(self.live.store).list()}:
                    raise
                continue  # retention has removed it in between
            verdict = verify(snapshot)
            if not verdict.holds:
                raise Violation(f"the proof of {name} does not hold: {verdict.findings}")
            self.messages = max(self.messages, ledger.assert_exactly_once(self.system, snapshot))
            self.checked[name] = ledger.covered_by(self.system, snapshot)

    def check_verdicts(self):
        """Check that snapshots are judged despite kills, and that the declared condition holds in all of them."""
        status = self.live.wait("a verdict", lambda s: s.conditions[0].judged)
        if status.conditions[0].violated or status.conditions[0].error:
            raise Violation(f"what is conserved was not: {status.conditions[0]}")

    def check_footprints(self):
        found = self.live.footprints()
        for name, one in found.items():
            usual = self._descriptors.setdefault(name, one.descriptors)
            if one.memory_bytes > MEMORY_BYTES_MAX or one.descriptors > usual + DESCRIPTORS_MORE_MAX:
                raise Violation(f"{name} occupies {one}; at first it had {usual} descriptors")
        self.memory.append({name: one.memory_bytes for name, one in found.items()})

    def check_growth(self):
        """Check that the memory of programs does not grow with the number of faults, even if they were restarted."""
        third = len(self.memory) // 3
        for name in (*NAMES, COORDINATOR) if third else ():
            sooner, later = (
                statistics.median([one[name] for one in some if name in one] or [0])
                for some in (self.memory[:third], self.memory[-third:])
            )
            if sooner and later > sooner + MEMORY_GROWTH_BYTES_MAX:
                raise Violation(f"{name} grew from {sooner:,} to {later:,} bytes")

    def check_end(self):
        """After the end of the system, check the released output, the damage, and that nothing is left."""
        self.check_growth()
        self.check_snapshots()
        self.lines = ledger.check_released(self.system, list(self.checked.values()), self.output)
        store = Store.open(self.live.store)
        self.check_damage(store)
        state = store.state()
        if state.next_position > 8 * CHECKPOINT_EVERY and store.positions()[0] == 0:
            raise Violation("no entry of the log was removed")
        self.committed, self.aborted = len(state.committed) + len(state.removed), len(state.aborted)
        self.rollbacks = state.epoch - 1
        assert_nothing_left(self.live.store)

    def check_damage(self, store):
        """Check that exactly the damaged blobs are found, by file and by snapshot."""
        problems = store.verify_bytes()
        if {problem.place for problem in problems} != self.damaged:
            raise Violation(f"damaged were {sorted(self.damaged)}, and found was: {problems}")
        levels = StoreLevels(store)
        for _, name, manifest in store.list():
            harmed = self.damaged & {blob_name(ref) for ref in blobs_of(manifest)}
            verified = levels.verify(name, Level.CAUSAL)
            if verified.holds != (not harmed) or {finding.subject for finding in verified.findings} != harmed:
                raise Violation(f"of {name}, {sorted(harmed)} were damaged, and found was: {verified.findings}")

    # Helpers

    def _count(self, kind, number):
        if number:
            self.injected[kind] += int(number)

    def _ask(self, kind, request):
        try:
            request()
            self._count(kind, 1)
        except StrobeError:
            pass  # not now: something else is wrong already

    def _undo_after(self, seconds, action):
        self._number += 1
        heapq.heappush(self._undoing, (time.monotonic() + seconds, self._number, action))

    def _undo_next(self):
        heapq.heappop(self._undoing)[2]()

    def _pass_time(self, seconds):
        deadline = time.monotonic() + seconds
        while True:
            self.live.tick()
            while self._undoing and self._undoing[0][0] <= time.monotonic():
                self._undo_next()
            self._say_progress()
            if time.monotonic() >= deadline:
                return
            time.sleep(0.01)

    def _say_progress(self):
        now_s = time.monotonic()
        if now_s - self._said_s >= PROGRESS_EVERY_S:
            self._said_s = now_s
            self._show(
                f"{now_s - self._began_s:6.0f} s: {self.injected.total()} faults injected, "
                f"{self.survived.total()} survived, {len(self.checked)} snapshots checked, {self.messages} messages"
            )


def limit_files(pid, limit_bytes):
    """Limit the size of the files of a program; return whether it runs."""
    try:
        resource.prlimit(pid, resource.RLIMIT_FSIZE, (limit_bytes, resource.RLIM_INFINITY))
    except ProcessLookupError:
        return False
    return True


def soak(directory, name, seed, seconds, faults=0, each=1, show=lambda line: None):
    """Run the system `name` under faults, and return the finished Soak; a violation raises an AssertionError."""
    output = directory / "output"
    output.mkdir(parents=True)
    with running(
        directory,
        f"{LEDGER}:{name}",
        NAMES,
        *("--interval", "0.1", "--timeout", "3", "--silence", "1.5", "--keep-last", "100"),
        settings=MANY_ROLLBACKS | NARROW | {"coordinator.overlapping_max": 3},
        environment={
            "STROBE_TEST_OUTPUT": str(output),
            fused.EVERY: str(CHECKPOINT_EVERY),
            "PYTHONPATH": f"{ROOT / 'src'}:{ROOT}",
        },
        through_proxy=True,
        program=(sys.executable, "-m", fused.__name__),
        popen=subprocess.Popen,
    ) as live:
        live.wait_running()
        one = Soak(live, getattr(ledger, name), seed, output, show)
        one.settle()
        one.run(seconds, faults, each)
    one.check_end()
    return one


def main():
    parser = argparse.ArgumentParser(prog="python -m tests.live.soak", description=__doc__.splitlines()[0])
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("--seed", type=int, default=None)
    parser.add_argument("--system", choices=SYSTEMS, action="append")
    asked = parser.parse_args()
    seed = asked.seed if asked.seed is not None else random.SystemRandom().randrange(1_000_000)
    systems = asked.system or SYSTEMS
    again = f"python -m tests.live.soak --seed {seed} --minutes {asked.minutes:g}"
    show(f"seed {seed}; {asked.minutes:g} minutes in all of {', '.join(systems)}")
    for name in systems:
        directory = Path(tempfile.mkdtemp(prefix="strobe-soak-"))
        show(f"{name}, in {directory}")
        try:
            done = soak(directory, name, seed, asked.minutes * 60 / len(systems), show=show)
        except (AssertionError, StrobeError) as error:
            show(f"VIOLATION: {error}\neverything is kept in {directory}; to repeat: {again} --system {name}")
            return 1
        report(done)
        shutil.rmtree(directory)
    return 0


def report(done):
    """Print the injected faults, and the results."""
    show(f"{'fault':28}{'injected':>10}{'survived':>10}")
    for kind, count in sorted(done.injected.items()):
        show(f"{kind:28}{count:10,}{done.survived[kind]:10,}")
    show(f"{'all':28}{done.injected.total():10,}{done.survived.total():10,}")
    show(
        f"snapshots: {done.committed:,} committed, {done.aborted:,} aborted, {len(done.checked):,} checked and verified"
    )
    show(f"rollbacks: {done.rollbacks:,}; messages checked: {done.messages:,}; lines released: {done.lines:,}")
    for when, memory in (("first", done.memory[0]), ("last", done.memory[-1])):
        show(f"memory, {when}: " + ", ".join(f"{name} {size / 1e6:.0f} MB" for name, size in sorted(memory.items())))


def show(line):
    print(line, flush=True)  # noqa: T201 -- this is a program


if __name__ == "__main__":
    sys.exit(main())
