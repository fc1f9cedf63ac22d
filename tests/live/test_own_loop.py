"""The second example of the README: a program with its own event loop, beside a process that Strobe runs (R4)."""

import subprocess
import sys
from contextlib import contextmanager

import msgspec
from tests.cli.command_line import REPOSITORY, run
from tests.live.support.checks import verify_all
from tests.live.support.harness import running, wait_until

EXAMPLE = REPOSITORY / "examples" / "own_loop.py"
SYSTEM = EXAMPLE.with_suffix(".toml")


@contextmanager
def shop(listen):
    """Run the program as a user does, and kill it in the end."""
    with subprocess.Popen([sys.executable, str(EXAMPLE), listen], stderr=subprocess.PIPE, text=True) as program:
        try:
            yield program
        finally:
            program.kill()


def test_R1_a_program_with_its_own_loop_is_killed_and_rolled_back(tmp_path):
    """R1, C7: its goods and the money of the till always have the same total value, whatever is killed."""
    with running(tmp_path, str(SYSTEM), ("till",), "--interval", "0.2", "--trace", "full") as live:
        listen = live.supervisor.listen
        with shop(listen) as first:
            live.wait_running()
            live.wait_committed(3)
            wait_for_segments(live, 1)
            first.kill()
        with shop(listen) as second:
            live.wait_rolled_back(1)
            live.wait_committed(2)
            wait_for_segments(live, 2)
            live.kill("till")
            status = live.wait_rolled_back(2)
            assert [rollback.blamed for rollback in status.rollbacks] == ["shop", "till"]
            live.wait_committed(2)
            snapshot = live.last_snapshot()
            live.supervisor.stop()
            # The program was notified that the system is stopped, so its loop and the program have ended. Log lines
            # about a peer that was still in the older epoch are no fault.
            _, output = second.communicate(timeout=60)
            assert second.returncode == 0, output
            assert "Traceback" not in output
    assert snapshot.fragments["shop"].state.position > 0
    assert verify_all(tmp_path / "store") >= 7
    verified = run(
        "snapshot", "verify", "--all", "--level", "restore", "--system", SYSTEM, "--store", tmp_path / "store", "--json"
    )
    assert verified.code == 0, verified
    assert "conserved: 1000" in verified.out
    check_traces(tmp_path / "store")


def test_E11_a_program_with_its_own_loop_hands_over_when_it_ends(tmp_path):
    """E11: told to restart, its loop ends; run again, it goes on in the same epoch."""
    with running(tmp_path, str(SYSTEM), ("till",), "--interval", "0.1") as live:
        listen = live.supervisor.listen
        with shop(listen) as first:
            live.wait_running()
            live.client.restart("shop")
            wait_until("the end of the first", lambda: first.poll() is not None, between=live.tick)
            assert first.returncode == 0, first.stderr.read()
        reached = live.process("shop").position
        with shop(listen):
            live.wait_running()
            live.client.restart("till")
            live.wait_progress()
            assert live.process("shop").position > reached
            live.wait_committed(2)
            status = live.status()
            assert (status.epoch, status.rollbacks) == (1, []), live.logs()
            snapshot = live.last_snapshot()
    verified = run(
        "snapshot", "verify", "--all", "--level", "invariants", "--system", SYSTEM, "--store", tmp_path / "store"
    )
    assert verified.code == 0, verified
    assert snapshot.fragments["shop"].state.position > reached


def wait_for_segments(live, epoch):
    """Wait until each process has written some segments of its trace; a kill ends the trace."""
    trace = live.store / "run" / "trace" / f"epoch-{epoch:06}"

    def fewest():
        return min(len(list((trace / name).glob("*.parquet"))) for name in ("shop", "till"))

    wait_until("some segments of each", lambda: fewest() >= 2, between=live.tick)


def check_traces(store):
    """R4: the program's events are in the trace too, and match those of the till; but they cannot be replayed."""
    for epoch in (1, 2, 3):
        trace = store / "run" / "trace" / f"epoch-{epoch:06}"
        verified = run("trace", "verify", trace, "--json")
        assert verified.code == 0, verified
        found = msgspec.json.decode(verified.out)
        assert found["holds"], found
        assert found["cuts"], found
    replayed = run("trace", "replay", trace, "--system", SYSTEM)
    assert replayed.code == 2
    assert "process shop is a program with its own event loop and cannot be replayed" in replayed.err


def test_the_example_has_less_than_eighty_lines():
    assert len(EXAMPLE.read_text("utf-8").splitlines()) < 80
