"""The commands for a backup in docs/operations/stores.md copy a store that is being written to."""

import re
import subprocess
from pathlib import Path

from tests.storage.samples import commit, sample

from strobe.storage import Store
from strobe.storage.store.repair import examine

PAGE = Path(__file__).parents[3] / "docs" / "operations" / "stores.md"


def test_a_backup_of_a_growing_store_has_every_snapshot_of_its_log(tmp_path):
    (block,) = re.findall(r"```sh\n(.*?)```", PAGE.read_text("utf-8"), re.DOTALL)
    *copying, verifying = block.splitlines()
    assert verifying == "strobe snapshot verify --all --store ./backup"
    store = Store.create(tmp_path / "snapshots")
    names = [commit(store, sample(counter)) for counter in (1, 2)]
    copied = next(number for number, line in enumerate(copying) if "snapshots/log" in line) + 1

    def run(lines):
        subprocess.run(["bash", "-euc", "\n".join(lines)], cwd=tmp_path, check=True)

    run(copying[:copied])
    commit(store, sample(3))
    run(copying[copied:])
    backup = Store.open(tmp_path / "backup")
    assert [name for _, name, _ in backup.list()] == names
    for name in names:
        assert backup.load(name) == store.load(name)
    assert examine(backup.backend).missing == ""
