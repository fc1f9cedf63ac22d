"""Prints a hash of all that a run leaves behind: run it as `python -m tests.simulation.fingerprint FOLDER SEED`."""

import hashlib
import sys
from pathlib import Path

from tests.simulation.systems import players

from strobe.protocol.process.first_view import first_view
from strobe.simulation.faults import Faults
from strobe.simulation.recorder import Recorder
from strobe.simulation.world import World
from strobe.storage import Store


def main(folder: str, seed: int) -> None:
    digest = hashlib.sha256()
    for protocol in ("chandy-lamport", "lai-yang"):
        system = players("complete", protocol, snapshots=True)
        recorder = Recorder(first_view(system), seed, "full")
        path = Path(folder) / protocol
        store = Store.create(str(path), identity="fingerprint")
        World(system, seed, faults=Faults.parse("all"), store=store, recorder=recorder).run(2)
        digest.update(recorder.text())
        for file in sorted(path.rglob("*")):
            if file.is_file() and "tmp" not in file.parts:
                digest.update(str(file.relative_to(path)).encode() + file.read_bytes())
    sys.stdout.write(digest.hexdigest())


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
