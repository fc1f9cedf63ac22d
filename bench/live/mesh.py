"""The duration of a snapshot in a fully connected system: 2, 8 and 32 nodes, one program each.

A snapshot sends one marker on every channel, so its time is shown beside the number of channels.
"""

import statistics
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

from bench.figures import Figure, at_most, shown
from bench.live.contest import await_, check, supervise
from bench.live.live_systems import MESH_EVERY_S
from strobe.cli.live.supervisor import Supervisor
from strobe.errors import TransportError
from strobe.runtime.messages.api_documents import COMMITTED, Status

COMMAND = "python -m bench mesh"
_SIZES = (2, 8, 32)
_SNAPSHOTS = 9
_START_S_MAX = 180.0
_PATIENCE_S = 60.0


class Mesh(NamedTuple):
    """The snapshots of one size: medians of the snapshots committed at the first attempt."""

    channels: int
    completion_ms: float
    written_bytes: float
    aborted: int


def _measure(size: int, folder: Path) -> Mesh:
    patient = ("--timeout", f"{_PATIENCE_S:g}", "--silence", f"{_PATIENCE_S:g}")
    names = [f"p{number:02d}" for number in range(size)]
    with supervise(f"bench.live.live_systems:mesh{size}", folder / f"store{size}", names, patient) as system:
        system.start()
        _await_settled(system)
        for _ in range(1 + _SNAPSHOTS):
            taken = system.client.take(timeout_s=_PATIENCE_S)
            if taken.outcome != COMMITTED:
                raise RuntimeError(f"a snapshot of {size} nodes was not taken: {taken.outcome} {taken.reason}")
            time.sleep(2 * MESH_EVERY_S)  # by then every state has changed
        check(system)
        return _summary(system.client.status())


def _summary(status: Status) -> Mesh:
    # The first snapshot creates folders and imports modules. An aborted attempt is cheap and proves nothing.
    counted = [one for one in status.finished[1:] if one.outcome == COMMITTED and one.attempt == 1]
    return Mesh(
        len(status.channels),
        statistics.median(snapshot.duration_us for snapshot in counted) / 1e3,
        statistics.median(snapshot.written_bytes for snapshot in counted),
        status.aborted,
    )


def _await_settled(system: Supervisor) -> None:
    def settled() -> bool:
        check(system)
        try:
            status = system.client.status()
        except TransportError:  # it is busy with handshakes
            return False
        return (
            status.settled
            and all(process.state == "running" for process in status.processes)
            and all(channel.connected for channel in status.channels)
        )

    await_(settled, "the nodes of a mesh to be connected", _START_S_MAX)


def measure() -> list[Figure]:
    with tempfile.TemporaryDirectory(dir=Path.cwd()) as place:  # for stores: /tmp may be in memory
        meshes = {size: _measure(size, Path(place)) for size in _SIZES}
    figures = []
    for size, mesh in meshes.items():
        title = f"snapshot of {size} nodes, {mesh.channels} markers"
        figures += [
            shown(f"{title}: completion", mesh.completion_ms, "ms", COMMAND),
            shown(f"{title}: written", mesh.written_bytes, "bytes", COMMAND),
            shown(f"{title}: attempts aborted", mesh.aborted, "", COMMAND),
        ]
    small, large = meshes[8], meshes[32]
    growth = (large.completion_ms / small.completion_ms) / (large.channels / small.channels)
    return [*figures, at_most("completion from 8 to 32 nodes, against channels", growth, "x", 1.5, COMMAND)]
