"""A coordinator on a crafted store starts or names the bad entry, and rolls back to an intact snapshot (E14, R1)."""

import asyncio
import io
import json
import os
import random
import resource
from contextlib import suppress

import pytest
from tests.cli.command_line import run, run_apart
from tests.runtime.api.sockets.test_routes import served
from tests.runtime.coordinator.sockets.test_coordinator_rollback import restart, restored
from tests.runtime.fake_nodes import both_alive, committed, running, system_of
from tests.storage.crafting import (
    ENTRY,
    chained,
    commits_of,
    copied,
    documents_of,
    newest_checkpoint,
    replace_checkpoint,
)
from tests.support.mutating import DEEP, mutated

from strobe.errors import SnapshotCorrupt, StoreError, UsageError
from strobe.protocol.coordinator.messages import RestoreRefused, SnapshotChosen
from strobe.runtime.api.snapshot_views import detail, list_snapshots, look_up
from strobe.runtime.coordinator.coordinator import Coordinator
from strobe.runtime.coordinator.log_writer import SnapshotSkipped
from strobe.runtime.event_log import EventLog
from strobe.runtime.recovery.restore_point import Topology
from strobe.runtime.settings import CoordinatorSettings
from strobe.storage import Store

MUTANTS = 60
MEMORY_BYTES_MAX = 300 << 20
PATIENCE_S = 20.0
NEWEST, OLDER = "000002-00000002-coordinator", "000002-00000001-coordinator"
SYSTEM = """
from strobe import Channel, Process, System


class Quiet(Process):
    def capture(self):
        return b""

    def restore(self, state):
        pass


system = System({"a": Quiet(), "b": Quiet()}, [Channel("a", "b"), Channel("b", "a")])
"""


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A store written by a live system: three snapshots, a rollback, and two more snapshots."""
    place = tmp_path_factory.mktemp("whole") / "store"

    async def scenario():
        async with running(place) as coordinator:
            a, b = await both_alive(coordinator)
            for number in range(3):
                await committed(coordinator, a, b, data=b"%d" % number)
            b = await restart(coordinator, b)
            await restored(a, b)
            for number in range(3, 5):
                await committed(coordinator, a, b, data=b"%d" % number)

    asyncio.run(scenario())
    assert list(Store.open(place).state().committed)[-2:] == [OLDER, NEWEST]
    return place


@pytest.fixture
def bounded_memory():
    """Fail if the test increases the peak memory of this process by more than a limit."""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    yield
    assert (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024 < MEMORY_BYTES_MAX


def started(store, *jobs):
    """Start a coordinator on `store`, call each job with it, and return their results."""

    async def scenario():
        settings = CoordinatorSettings(interval_s=0)
        log = EventLog(io.StringIO(), as_json=True)
        coordinator = Coordinator(system_of("a", "b"), str(store), settings, None, None, log)
        async with asyncio.timeout(PATIENCE_S):
            try:
                await coordinator.start()
                return [await job(coordinator) for job in jobs]
            finally:
                await coordinator.close()

    return asyncio.run(scenario())


def choosing(wanted=None):
    """Return a job in which the store's thread chooses the snapshot of a rollback."""

    async def job(coordinator):
        topology = Topology(coordinator.system.protocol, (coordinator.first_view, coordinator.lifecycle.view))
        return await coordinator.store.work(coordinator.store.log.choose, wanted, topology, False, coordinator.system)

    return job


async def show_all(coordinator):
    """Make every API document about snapshots; a corrupt snapshot may be refused."""
    state = coordinator.state
    list_snapshots(coordinator.store_url, look_up(state, list(state.committed)))
    for name in state.committed:
        with suppress(SnapshotCorrupt):
            detail(look_up(state, [name]))


WAYS_TO_END = ("refused", "of another system", SnapshotChosen, RestoreRefused)


def outcome_of(store):
    """Return how a coordinator's start and its first rollback on `store` end."""
    try:
        *_, chosen = started(store, show_all, choosing("latest"), choosing())
    except StoreError as error:
        return "refused" if error.exit_code == 1 and "log/0000" in str(error) else str(error)
    except UsageError:
        return "of another system"
    return type(chosen[-1])


@pytest.mark.usefixtures("bounded_memory")
def test_E14_a_coordinator_starts_on_mutated_entries_or_names_the_entry(whole, tmp_path):
    """E14: one value of one entry is changed, and the hash chain of the log is repaired from there."""
    documents, outcomes = documents_of(whole), set()
    for seed in range(MUTANTS):
        chance = random.Random(seed)
        position = chance.choice(commits_of(whole)) if chance.random() < 0.6 else chance.randrange(len(documents))
        document, change = mutated(documents[position], chance)
        crafted = copied(whole, tmp_path / "crafted")
        chained(crafted, position, {position: document})
        outcomes.add(outcome := outcome_of(crafted))
        assert outcome in WAYS_TO_END, (seed, position, change)
    assert outcomes >= {"refused", SnapshotChosen}


def test_E14_a_coordinator_starts_on_mutated_checkpoints(whole, tmp_path):
    """E14: one value of the checkpoint is changed, with a valid checksum; if it is refused, the entries are read."""
    checkpointed = copied(whole, tmp_path / "checkpointed")
    writer = Store(Store.open(checkpointed).backend, checkpoint_every=4)
    writer.state()
    assert writer.write_checkpoint() is not None
    for seed in range(MUTANTS):
        crafted = copied(checkpointed, tmp_path / "crafted")
        document, change = mutated(newest_checkpoint(crafted)[1], random.Random(seed))
        replace_checkpoint(crafted, document)
        assert outcome_of(crafted) in WAYS_TO_END, (seed, change)


def newest_commit(store, change):
    """Change the newest commit, and repair the hash chain of the log."""
    position = commits_of(store)[-1]
    document = documents_of(store)[position]
    change(document["entry"]["manifest"])
    chained(store, position, {position: document})


def without_record(manifest):
    del manifest["processes"]["a"]["sent"]["a->b"]


def without_process(manifest):
    del manifest["processes"]["b"]


def with_more_messages(manifest):
    manifest["processes"]["a"]["in_flight"]["b->a"].update(messages=2**62, frames=2**62)


def with_state_beyond_all_memory(manifest):
    manifest["processes"]["a"]["state"]["bytes"] = 2**62


def nested(manifest):
    manifest["another"] = DEEP


def beyond_64_bits(manifest):
    manifest["processes"]["a"]["sent"]["a->b"]["count"] = 2**64


def as_fifo(path):
    path.unlink()
    os.mkfifo(path)


def as_link(path):
    path.rename(path.parent.parent / "elsewhere")
    path.symlink_to(path.parent.parent / "elsewhere")


def as_device(path):
    path.unlink()
    path.symlink_to("/dev/zero")


def with_blob_as(make):
    def change(store):
        record = documents_of(store)[commits_of(store)[-1]]["entry"]["manifest"]["processes"]["a"]["state"]
        make(store / "blobs" / f"{record['begin']:020d}" / record["blake3"])

    return change


UNREADABLE = {
    "nested": (lambda store: newest_commit(store, nested), "recursion"),
    "beyond 64 bits": (lambda store: newest_commit(store, beyond_64_bits), "count"),
    "fifo": (lambda store: as_fifo(store / ENTRY.format(12)), "is a FIFO, but must be a regular file"),
    "link": (lambda store: as_link(store / ENTRY.format(12)), "is a symbolic link, but must be a regular file"),
    "device": (lambda store: as_device(store / ENTRY.format(12)), "is a symbolic link, but must be a regular file"),
}
UNRESTORABLE = {
    "no record": (lambda store: newest_commit(store, without_record), "a->b"),
    "no process": (lambda store: newest_commit(store, without_process), "b"),
    "messages": (lambda store: newest_commit(store, with_more_messages), "b->a"),
    "state": (lambda store: newest_commit(store, with_state_beyond_all_memory), f"instead of {2**62}"),
    "fifo": (with_blob_as(as_fifo), "is a FIFO, but must be a regular file"),
    "link": (with_blob_as(as_link), "is a symbolic link, but must be a regular file"),
    "device": (with_blob_as(as_device), "is a symbolic link, but must be a regular file"),
}


@pytest.mark.usefixtures("bounded_memory")
@pytest.mark.parametrize("kind", UNREADABLE)
def test_E14_a_coordinator_names_the_entry_that_it_cannot_start_on(whole, tmp_path, kind):
    """E14: it ends, and does not retry until the entry becomes readable."""
    spoil, problem = UNREADABLE[kind]
    crafted = copied(whole, tmp_path / "crafted")
    spoil(crafted)
    with pytest.raises(StoreError) as raised:
        started(crafted)
    assert raised.value.exit_code == 1
    assert ENTRY.format(12) in str(raised.value)
    assert problem in str(raised.value)


@pytest.mark.parametrize("kind", ["nested", "fifo"])
def test_E14_the_coordinator_command_ends_with_the_place_and_exit_code_1(whole, tmp_path, kind):
    """E14: the whole program; it must not hang, retry or show a traceback."""
    (tmp_path / "quiet.py").write_text(SYSTEM)
    crafted = copied(whole, tmp_path / "crafted")
    UNREADABLE[kind][0](crafted)
    ports = ("--listen", "127.0.0.1:0", "--api", "127.0.0.1:0")
    result = run_apart("coordinator", f"{tmp_path}/quiet.py:system", "--store", crafted, *ports)
    assert result.code == 1, result
    assert ENTRY.format(12) in result.err
    assert UNREADABLE[kind][1] in " ".join(result.err.split())
    assert "Traceback" not in result.err


@pytest.mark.usefixtures("bounded_memory")
@pytest.mark.parametrize("kind", UNRESTORABLE)
def test_E14_a_rollback_skips_a_crafted_snapshot_with_the_reason(whole, tmp_path, kind):
    """E14: a request by name is refused; otherwise an older snapshot is chosen."""
    spoil, problem = UNRESTORABLE[kind]
    crafted = copied(whole, tmp_path / "crafted")
    spoil(crafted)
    _, by_name, newest = started(crafted, show_all, choosing(NEWEST), choosing())
    assert isinstance(by_name[-1], RestoreRefused)
    assert problem in by_name[-1].reason
    *_, skipped, chosen = newest
    assert isinstance(skipped, SnapshotSkipped)
    assert NEWEST in skipped.reason
    assert problem in skipped.reason
    assert chosen.snapshot == OLDER


def test_E14_processes_of_a_crafted_store_begin_at_an_older_snapshot(whole, tmp_path):
    """E14: the newest snapshot is crafted; the API gives the reason for each request about it."""
    crafted = copied(whole, tmp_path / "crafted")
    newest_commit(crafted, without_record)

    async def scenario(coordinator, asking):
        nodes = [await coordinator.node(name) for name in ("a", "b")]
        assert [order.restored for order in await restored(*nodes)] == [OLDER, OLDER]
        assert NEWEST in coordinator.logged("snapshot skipped")[0]["reason"]
        shown = await asking("GET", f"/v1/snapshots/{NEWEST}")
        assert shown.code == 409
        assert "process a: a->b is missing in `sent`" in shown.document["error"]
        assert (await asking("GET", f"/v1/snapshots/{OLDER}")).code == 200
        listed = await asking("GET", "/v1/snapshots")
        assert (listed.code, listed.document["total"]) == (200, 5)
        refused = await asking("POST", "/v1/restore", {"snapshot": NEWEST})
        assert refused.code == 409
        assert "a->b" in refused.document["error"]
        restore = await asyncio.to_thread(run, "restore", NEWEST, "--api", coordinator.service.api)
        assert restore.code == 1
        assert "a->b" in restore.err

    served(scenario, crafted)


@pytest.mark.parametrize("at_us", [2**63 - 1, 253_402_300_800_000_000, 10**15])
def test_E14_dates_beyond_the_calendar_are_shown_as_numbers(whole, tmp_path, at_us):
    """E14: any number of microseconds is a valid time, but not every one has a date."""
    crafted = copied(whole, tmp_path / "crafted")
    documents = documents_of(crafted)
    for document in documents[-2:]:
        document["entry"]["at_us"] = at_us
    documents[-1]["entry"]["manifest"].update(started_us=at_us, completed_us=at_us)
    chained(crafted, len(documents) - 2, dict(enumerate(documents)))
    text = "2001-09-09" if at_us == 10**15 else f"{at_us:,} us"
    for words in (("list",), ("list", "--all"), ("show", NEWEST)):
        result = run("snapshot", *words, "--store", crafted)
        assert result.code == 0, result
        assert text in result.out
        shown = run("snapshot", *words, "--store", crafted, "--json")
        assert shown.code == 0
        assert str(at_us) in json.dumps(shown.document)
