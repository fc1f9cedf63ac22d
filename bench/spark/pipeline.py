"""The pipeline: from commit to verdict, and a backlog against a loop over the same store in one Python process."""

import shutil
import statistics
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path

import msgspec

from bench.figures import Figure, at_least, at_most, cpu_of_tree_s, shown, wall_s
from bench.spark.spark_stores import unsynced
from strobe.causality import verify
from strobe.protocol.values.fragment import MSGPACK, Fragment, LocalState, Snapshot
from strobe.protocol.values.frames import Frame, Frontier, InFlight, extend_fifo, seed_hash
from strobe.protocol.values.ids import COORDINATOR, SnapshotId
from strobe.protocol.values.log_entries import Begin
from strobe.protocol.values.view import ChannelSpec, View
from strobe.spark import Options, Pipeline, local_session, stop_local_session
from strobe.spark.pipeline.output_tables import VERDICTS, Outputs
from strobe.spark.pipeline.query import PipelineObserver
from strobe.spark.schema import columns as c
from strobe.storage import Store
from strobe.storage.content.manifests import blobs_of
from strobe.storage.inspection.fast_proof import prove

COMMAND = "python -m bench pipeline"
_PEERS, _FRAME_MESSAGES = 8, 4
_BACKLOG, _PROCESSES = 1000, 64
_LATENCY_SNAPSHOTS, _LATENCY_PAUSE_S = 15, 0.15


def _snapshot(counter: int, processes: int) -> Snapshot:
    """Each process has channels to its next eight peers, and a frame in flight on each."""
    names = tuple(f"process-{number:03d}" for number in range(processes))
    pairs = [(p, names[(place + step) % processes]) for place, p in enumerate(names) for step in range(1, _PEERS + 1)]
    pairs = [(p, q) for p, q in dict.fromkeys(pairs) if p != q]
    view = View(1, names, tuple(ChannelSpec(f"{p}->{q}", p, q) for p, q in pairs))
    sent: dict[str, dict[str, Frontier]] = {name: {} for name in names}
    received: dict[str, dict[str, Frontier]] = {name: {} for name in names}
    in_flight: dict[str, dict[str, tuple[InFlight, ...]]] = {name: {} for name in names}
    for channel in view.channels:
        seed = seed_hash(channel.id, channel.incarnation)
        body = msgspec.msgpack.encode([{"amount": counter + each} for each in range(_FRAME_MESSAGES)])
        received[channel.target][channel.id] = Frontier(0, seed)
        in_flight[channel.target][channel.id] = (InFlight(Frame(1, _FRAME_MESSAGES, body)),)
        sent[channel.source][channel.id] = Frontier(_FRAME_MESSAGES, extend_fifo(seed, 1, _FRAME_MESSAGES, body))
    identity = SnapshotId(1, counter, COORDINATOR)
    fragments = {
        name: Fragment(identity, name, 1, sent[name], received[name], in_flight[name], _state(counter, place))
        for place, name in enumerate(names)
    }
    return Snapshot(identity, "chandy-lamport", names[:1], view, fragments, 10, 20)


def _state(counter: int, place: int) -> LocalState:
    return LocalState(counter, MSGPACK, msgspec.msgpack.encode({"balance": counter * 1000 + place, "text": "x" * 200}))


def _commit(store: Store, snapshot: Snapshot) -> None:
    name = str(snapshot.id)
    store.append(Begin(name, 1, snapshot.protocol, snapshot.initiators, 10), store.state().next_position)
    store.commit(name, store.write_snapshot(snapshot), store.state().next_position, 30)


def _fill(path: Path, snapshots: int, processes: int) -> str:
    store = Store.create(path)
    with unsynced():
        for counter in range(1, snapshots + 1):
            _commit(store, _snapshot(counter, processes))
    return store.url


def _loop(url: str) -> None:
    """What a user would write: load each snapshot, and verify it with `strobe.causality.proof`."""
    store = Store.open(url)
    assert all(verify(store.load(name)).holds for _, name, _ in store.list())


def _bare_loop(url: str) -> None:
    """The minimum work in one process: check every byte, and the proof as the pipeline checks it."""
    store = Store.open(url)
    for _, name, manifest in store.list():
        blobs = {ref: store.read_blob(ref) for ref in blobs_of(manifest)}
        assert prove(name, manifest, blobs.__getitem__).holds


class Runs:
    """Runs of the pipeline, each into a new directory."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._number = 0

    def __call__(self, url: str) -> None:
        self._number += 1
        to = self._folder / f"to-{self._number}"
        # Drift checks are included, although the loop does not have them.
        Pipeline(local_session(), url, to).run(once=True)
        shutil.rmtree(to)


def _tree_cpu_s(work: Callable[[], object]) -> float:
    """Return the CPU seconds of this process and all its children, including ended ones: Java, and workers."""
    before = cpu_of_tree_s()
    work()
    return cpu_of_tree_s() - before


class Judged:
    """The snapshots with verdicts, read batch by batch as they are written."""

    def __init__(self, outputs: Outputs) -> None:
        self._outputs = outputs
        self._batches: set[int] = set()
        self._snapshots: set[str] = set()

    def poll(self) -> set[str]:
        for batch_id in set(self._outputs.batches()) - self._batches:
            self._batches.add(batch_id)
            self._snapshots |= {row[c.SNAPSHOT_ID] for row in self._outputs.read(VERDICTS, batch_id)}
        return self._snapshots


def _latency_s(folder: Path) -> tuple[float, float]:
    """Return the median time from a commit to its verdict on disk, and that of an empty batch."""
    store = Store.create(folder / "live")
    outputs = Outputs(folder / "live-to")
    taken: list[float] = []
    done = threading.Event()

    def commit_now_and_then() -> None:
        judged = Judged(outputs)
        for counter in range(1, _LATENCY_SNAPSHOTS + 1):
            snapshot = _snapshot(counter, 4)
            _commit(store, snapshot)
            start = time.perf_counter()
            while str(snapshot.id) not in judged.poll() and not done.is_set():
                time.sleep(0.005)
            taken.append(time.perf_counter() - start)
            time.sleep(_LATENCY_PAUSE_S)
        done.set()

    class UntilDone(PipelineObserver):
        def poll(self) -> bool:
            return done.is_set()

    writer = threading.Thread(target=commit_now_and_then)
    writer.start()
    Pipeline(local_session(), store.url, outputs.root, Options()).run(watch=UntilDone())
    done.set()
    writer.join()
    # The first ones wait for the stream to start, and for Java to warm up.
    return statistics.median(taken[3:]), _empty_batch_s(folder)


def _empty_batch_s(folder: Path) -> float:
    """The floor: the time of a micro-batch that does nothing with its one row."""
    spark = local_session()
    source = spark.readStream.format("rate").option("rowsPerSecond", 1).load()
    query = source.writeStream.foreachBatch(lambda *_: None).option("checkpointLocation", str(folder / "floor")).start()
    took: list[int] = []
    while len(took) < 6 and query.isActive:
        time.sleep(0.05)
        # Unused rows are not counted, so a batch is recognized by its addBatch duration.
        durations = [one["durationMs"] for one in query.recentProgress]
        took = [one["triggerExecution"] for one in durations if "addBatch" in one]
    query.stop()
    return statistics.median(took[2:]) / 1000


def measure() -> list[Figure]:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        run = Runs(folder)
        url = _fill(folder / "backlog", _BACKLOG, _PROCESSES)
        tenth, narrow = _fill(folder / "tenth", _BACKLOG // 10, _PROCESSES), _fill(folder / "narrow", 200, 8)
        wide = _fill(folder / "wide", 200, 80)
        start_s = wall_s(local_session)
        first_s = wall_s(lambda: run(tenth))
        walls: dict[str, list[float]] = {key: [] for key in ("pipeline", "loop", "bare", "tenth", "narrow", "wide")}
        cpus: dict[str, list[float]] = {"pipeline": [], "loop": [], "bare": []}
        for _ in range(3):
            cpus["pipeline"].append(_tree_cpu_s(lambda: walls["pipeline"].append(wall_s(lambda: run(url)))))
            cpus["loop"].append(_tree_cpu_s(lambda: walls["loop"].append(wall_s(lambda: _loop(url)))))
            cpus["bare"].append(_tree_cpu_s(lambda: walls["bare"].append(wall_s(lambda: _bare_loop(url)))))
            walls["tenth"].append(wall_s(lambda: run(tenth)))
            walls["narrow"].append(wall_s(lambda: run(narrow)))
            walls["wide"].append(wall_s(lambda: run(wide)))
        wall = {key: statistics.median(found) for key, found in walls.items()}
        cpu = {key: statistics.median(found) for key, found in cpus.items()}
        latency_s, floor_s = _latency_s(folder)
        stop_local_session()
    what = f"{_BACKLOG} snapshots of {_PROCESSES} processes"
    return [
        shown("pipeline, session start", start_s, "s", COMMAND),
        shown(f"pipeline, first run of a session ({_BACKLOG // 10} snapshots)", first_s, "s", COMMAND),
        at_most("commit to verdict, 4 processes, median", latency_s, "s", 3.0, COMMAND),
        shown("a micro-batch that does nothing", floor_s, "s", COMMAND),
        shown(f"{what}, pipeline", wall["pipeline"], "s", COMMAND),
        shown(f"{what}, Python loop", wall["loop"], "s", COMMAND),
        shown(f"{what}, bare loop (quick proof)", wall["bare"], "s", COMMAND),
        at_least(f"{what}, against the loop, wall time", wall["loop"] / wall["pipeline"], "x faster", 1.4, COMMAND),
        at_most(f"{what}, against the loop, CPU", cpu["pipeline"] / cpu["loop"], "x", 1.5, COMMAND),
        shown(f"{what}, against the bare loop, wall time", wall["bare"] / wall["pipeline"], "x faster", COMMAND),
        shown(f"{what}, against the bare loop, CPU", cpu["pipeline"] / cpu["bare"], "x", COMMAND),
        at_most("ten times the snapshots", wall["pipeline"] / wall["tenth"], "x the time", 10.5, COMMAND),
        at_most("ten times the processes (8 to 80, 200 snapshots)", wall["wide"] / wall["narrow"], "x", 10.5, COMMAND),
    ]
