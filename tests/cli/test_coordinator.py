"""`strobe coordinator`: where it listens."""

import subprocess
import sys
from contextlib import contextmanager

from tests.cli.command_line import BANK, REPOSITORY
from tests.listening import listening

from strobe.runtime.settings import CoordinatorSettings


@contextmanager
def running_coordinator(store, *words):
    """Run a coordinator; give it, and all that it has logged when it listens."""
    command = [sys.executable, "-m", "strobe.cli", "coordinator", BANK, "--store", str(store), *words]
    with subprocess.Popen(command, cwd=REPOSITORY, stderr=subprocess.PIPE, text=True) as coordinator:
        try:
            lines = []
            while not lines or "listening" not in lines[-1]:
                lines.append(coordinator.stderr.readline())
                assert lines[-1], lines
            yield coordinator, lines
        finally:
            coordinator.kill()


def test_it_listens_on_loopback_unless_told_otherwise(tmp_path):
    """Whoever can reach its ports can take part: nobody else can, by default."""
    defaults = CoordinatorSettings()
    assert (defaults.listen, defaults.api) == ("127.0.0.1:7400", "127.0.0.1:7480")
    # These very ports may be taken on a machine that runs tests.
    here = ("--listen", "127.0.0.1:0", "--api", "127.0.0.1:0")
    with running_coordinator(tmp_path / "here", *here) as (coordinator, _):
        assert [host for host, _ in listening(coordinator.pid)] == ["127.0.0.1", "127.0.0.1"]
    everywhere = ("--listen", "0.0.0.0:0", "--api", "127.0.0.1:0")
    with running_coordinator(tmp_path / "everywhere", *everywhere) as (coordinator, _):
        assert [host for host, _ in listening(coordinator.pid)] == ["0.0.0.0", "127.0.0.1"]
