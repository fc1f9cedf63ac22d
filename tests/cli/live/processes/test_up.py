"""`strobe up` as its user sees it."""

import json
import os
import select
import signal
import socket
import subprocess
import sys
from contextlib import contextmanager
from io import StringIO
from pathlib import Path
from types import SimpleNamespace

import pytest
from rich.console import Console
from rich.text import Text
from tests.cli.command_line import BANK, REPOSITORY, refused, run, run_apart
from tests.cli.live.processes.started_up import (
    child_that,
    ended,
    interrupted,
    status_of,
)
from tests.live.support.harness import wait_until

from strobe.cli.arguments.live_options import load_live
from strobe.cli.arguments.systems import open_system
from strobe.cli.live.child import EndedChild
from strobe.cli.live.supervisor import Supervisor
from strobe.cli.live.up import coordinator_options
from strobe.cli.live.up_display import UpDisplay, _rendered
from strobe.cli.live.up_session import Session
from strobe.errors import TransportError
from strobe.runtime.api.client import Client
from strobe.runtime.api.discovery import Discovered
from strobe.runtime.messages.api_documents import FinishedSnapshot, Part, ProcessStatus, RollbackReport, Trouble
from strobe.storage import Store


@contextmanager
def started_up(*words, cwd=REPOSITORY):
    """Run `strobe up` in a separate process; yield it when it reports that the system runs, and kill it in the end."""
    command = [sys.executable, "-m", "strobe", "up", *map(str, words), "--create"]
    with subprocess.Popen(command, cwd=cwd, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as program:
        try:
            line = program.stderr.readline()
            if not line.startswith("running; logs are in "):
                program.kill()
                pytest.fail(line + program.stderr.read())
            yield program
        finally:
            program.kill()


def all_running(store):
    """Return whether a coordinator answers and reports that every process runs."""
    try:
        status = Client.of_store(str(store)).status()
    except TransportError:
        return False
    return status.settled and all(process.state == "running" for process in status.processes)


def children_of(pid):
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def assert_gone(pids):
    assert pids
    for pid in pids:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)


def test_an_interrupt_takes_a_last_snapshot_to_continue_from(tmp_path):
    """R1, E1: the example that runs in the simulator runs live, unchanged; --json prints one document."""
    store = tmp_path / "store"
    with started_up(BANK, "--interval", "0", "--store", store) as program:
        pids = children_of(program.pid)
        wait_until("everybody running", lambda: all_running(store))
        result = interrupted(program)
    assert result.code == 0, result
    assert "1 complete snapshot in the store" in result.out, result
    assert_gone(pids)
    with started_up(BANK, "--interval", "0.1", "--store", store, "--json") as program:
        wait_until("another snapshot", lambda: len(Store.open(store).list()) > 1)
        result = interrupted(program)
    assert result.code == 0, result
    document = result.document
    assert [process["name"] for process in document["processes"]] == ["a", "b", "c", "d"]
    assert document["epoch"] == 2
    assert document["committed"] > 1
    assert "last snapshot: " in result.err
    assert result.err.rstrip().endswith("everything has ended")
    verify = ("snapshot", "verify", "--all", "--level", "invariants", "--system", BANK, "--store", store, "--json")
    verified = run(*verify)
    assert verified.code == 0, verified
    assert verified.out.count("conserved: 800") == document["committed"]


def test_a_second_interrupt_ends_at_once(tmp_path):
    with started_up(BANK, "--store", tmp_path / "store") as program:
        pids = children_of(program.pid)
        os.kill(pids[0], signal.SIGSTOP)  # the coordinator does not answer, so nothing ends cleanly
        program.send_signal(signal.SIGINT)
        program.send_signal(signal.SIGTERM)
        _, err = program.communicate(timeout=60)
        assert program.returncode == 130, err
        assert "Traceback" not in err
    assert_gone(pids)


def test_children_end_when_their_parent_is_killed(tmp_path):
    with started_up(BANK, "--store", tmp_path / "store") as program:
        pids = children_of(program.pid)
        watched = [os.pidfd_open(pid) for pid in pids]
        program.kill()
        program.communicate()
        for pid, pidfd in zip(pids, watched, strict=True):
            poll = select.poll()
            poll.register(pidfd, select.POLLIN)
            assert poll.poll(30_000), f"child {pid} still runs"
            os.close(pidfd)


def test_a_process_that_cannot_run_stops_everything_with_its_reason(tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        (tmp_path / "bank.py").write_text((REPOSITORY / "examples" / "bank.py").read_text())
        (tmp_path / "system.toml").write_text(
            f'[coordinator]\nlisten = "127.0.0.1:0"\napi = "127.0.0.1:0"\n'
            f'[process.a]\nclass = "bank:Branch"\nargs = {{balance = 1}}\nlisten = "127.0.0.1:{port}"\n'
        )
        result = run_apart("up", "system.toml", "--store", "store", "--create", "--json", cwd=tmp_path)
    assert result.code == 3, result
    assert f"process a cannot listen at 127.0.0.1:{port}" in result.err
    assert "a ended with exit code 3: process a cannot listen" in result.document["error"]["message"]
    assert not (tmp_path / "store" / "run" / "coordinator.json").exists()


@pytest.mark.parametrize(
    ("words", "part"),
    [
        (["nothing.py:bank"], "cannot be read"),
        ([BANK, "--store", "ftp://host/snapshots"], "ftp:// is not a kind of store"),
        ([BANK, "--fork"], "--fork goes with --restore ID"),
        ([BANK, "--for", "0"], "--for takes a number of seconds above 0"),
        ([BANK, "--set", "node.colour=red"], "the settings of [node] are:"),
        ([BANK, "--set", "node.trace=everything"], "there is no trace 'everything'"),
        ([BANK, "--trace", "everything"], "there is no trace 'everything'"),
        ([BANK, "--interval", "-1"], "interval_s = -1.0 makes no sense: it must be at least 0"),
        ([BANK, "--set", "retention.keep_last=-1"], "keep_last = -1 makes no sense: it must be at least 0"),
    ],
)
def test_bad_input_is_refused_before_anything_is_started(tmp_path, monkeypatch, words, part):
    monkeypatch.chdir(tmp_path)
    refused(run("up", *words), part)
    assert not list(tmp_path.iterdir())


def test_a_store_that_cannot_be_written_is_an_error_that_names_it(tmp_path):
    """S1: the same message as from `strobe coordinator`."""
    (tmp_path / "file").touch()
    for words in ((), ("--create",)):
        refused(run("up", BANK, "--store", tmp_path / "file", *words), f"store {tmp_path}/file: is not a directory")


def test_programs_with_their_own_loop_are_left_to_the_user(tmp_path, monkeypatch):
    seen = {}

    class Fake(Supervisor):
        def start(self, before_nodes):
            seen["programs"] = self._programs
            self.listen = "127.0.0.1:7"
            self.client = SimpleNamespace(api="127.0.0.1:8", status=lambda: status_of(halted="enough"))

        def stop(self, asks=True):
            pass

    monkeypatch.setattr("strobe.cli.live.up.Supervisor", Fake)
    result = run("up", REPOSITORY / "examples" / "own_loop.toml", "--store", tmp_path / "store", "--create")
    assert seen["programs"] == [("till",)]
    assert (
        "shop is a program with its own event loop: start it yourself; its coordinator is 127.0.0.1:7\n" in result.err
    )
    assert result.code == 1  # it was halted


def test_a_departed_process_is_reported_and_started_only_when_needed(tmp_path, monkeypatch, capsys):
    """E2: if it were started, it would join again, which nobody has requested."""

    class Fake(Supervisor):
        def _await_coordinator(self, child):
            child.process.wait()
            return Discovered("127.0.0.1:7", "127.0.0.1:8", 0, 0)

    monkeypatch.setattr(Client, "status", lambda self: status_of(left=["c", "shop"]))
    Store.create(tmp_path)
    with Fake("bank.py:bank", str(tmp_path), ["b", "c"], program=[sys.executable, "-c", ""]) as supervisor:
        supervisor.start()
        assert (supervisor.starts("b"), supervisor.starts("c")) == (1, 0)
        Session(supervisor, ["shop", "till"])._note_not_started(supervisor.left, supervisor.listen)
        supervisor.needed("c")
        supervisor.tick()
        assert supervisor.starts("c") == 1
    lines = capsys.readouterr().err.splitlines()
    assert [line.partition(";")[0] for line in lines] == [
        "c has left, and is not started",
        "shop has left, and is not started",
        "till is a program with its own event loop: start it yourself",
    ]


def test_free_ports_are_used_unless_the_file_has_others():
    with open_system(BANK) as source:
        live = load_live(source)
        assert coordinator_options(live, None, None, []) == ["--listen", "127.0.0.1:0", "--api", "127.0.0.1:0"]
    with open_system(str(REPOSITORY / "examples" / "own_loop.toml")) as source:
        live = load_live(source)
        assert coordinator_options(live, 0.5, "full", ["node.window_bytes=9"]) == [
            *("--interval", "0.5", "--trace", "full", "--set", "node.window_bytes=9")
        ]


def test_a_configured_port_is_kept():
    with open_system(BANK) as source:
        live = load_live(source)
        api = "coordinator.api=127.0.0.1:7"
        assert coordinator_options(live, None, None, [api]) == ["--set", api, "--listen", "127.0.0.1:0"]
        both = ["coordinator.listen=127.0.0.1:8", api]
        assert coordinator_options(live, None, None, both) == ["--set", both[0], "--set", both[1]]


def test_events_from_before_this_run_are_not_shown_as_new(capsys):
    """Only events from before the first coordinator are old; those that end during its restart are shown."""
    old, new = finished_of("000001-00000001-x", 50), finished_of("000001-00000002-x", 150)
    rollbacks = [
        RollbackReport(epoch, at_us, None, f"reason {epoch}", None, {}) for epoch, at_us in ((2, 60), (3, 160))
    ]
    watch = UpDisplay()
    watch.show(status_of(started_us=100, finished=[old], rollbacks=rollbacks[:1]))
    watch.show(status_of(started_us=200, finished=[old, new], rollbacks=rollbacks))
    output = capsys.readouterr().err
    assert "reason 3" in output
    assert "000001-00000002-x committed" in output
    assert "reason 2" not in output
    assert "000001-00000001-x" not in output


@pytest.mark.parametrize(
    "log_text",
    [
        "12:00:01.000 error: process b ends: boom (m.py:3, in start()) process=b",
        '12:00:01.000 error: process b ends: boom (m.py:3, in start()) process=b traceback="Traceback (most ...):\n'
        '  File "m.py", line 3, in start\n    raise ValueError(error: no)\n    ^^^^^\nValueError: an error: no"',
    ],
)
def test_a_failed_child_is_shown_in_one_line_without_its_traceback(tmp_path, lifeline, capsys, log_text):
    child = child_that(tmp_path, f"print({log_text!r}); raise SystemExit(1)")
    child.start(lifeline)
    assert ended(child) == 1
    Session(SimpleNamespace())._show_end(EndedChild("b", 1, child.last_error()))
    expected = "b ended with exit code 1: boom (m.py:3, in start()); it is started again\n"
    assert capsys.readouterr().err.partition(" ")[2] == expected


def finished_of(snapshot, ended_us):
    return FinishedSnapshot(snapshot, "committed", "", ended_us - 10, 10, 1, 0, 0, 0, 0, [])


def process_of(name, state, blocked=""):
    fields = dict.fromkeys(ProcessStatus.__struct_fields__, 0)
    fields |= {"name": name, "state": state, "rejected": {}, "trouble": "", "instance": "", "host": "", "address": ""}
    return ProcessStatus(**fields | {"blocked": blocked})


def test_the_table_names_a_call_that_blocks_a_process_as_long_as_it_does():
    """E13: with its running time, which the notice above the table would not update."""
    console = Console(file=StringIO(), width=120)
    calls = [f"Branch.receive() of b at bank.py:26 has been running for {seconds}.0 s" for seconds in (5, 6)]
    with UpDisplay() as display:
        display._live = SimpleNamespace(update=console.print, __exit__=lambda *_: None)
        for call in (*calls, ""):
            troubles = [Trouble("blocked", f"{call}; until it returns, no snapshot completes")] if call else []
            display.show(status_of(processes=[process_of("b", "missing", call)], troubles=troubles))
        display._live = None
    drawn = console.file.getvalue().split("epoch ")[1:]
    assert [call in table for call, table in zip(calls, drawn, strict=False)] == [True, True]
    assert ["blocked" in table for table in drawn] == [True, True, False]
    assert "until it returns" not in console.file.getvalue()


@pytest.mark.parametrize("columns", [20, 80, 200])
def test_the_table_fits_a_terminal_of_any_width(columns):
    console = Console(file=StringIO(), width=columns, force_terminal=True)
    console.print(_rendered(status_of(processes=[process_of("a", "running")]), ["something has happened"]))
    lines = [Text.from_ansi(line).plain for line in console.file.getvalue().splitlines()]
    assert all(len(line) <= columns for line in lines)
    assert any(line.startswith("p") for line in lines)


def test_a_table_of_many_processes_shows_first_those_that_do_not_run():
    console = Console(file=StringIO(), width=80, force_terminal=True)
    many = [process_of(f"p{number:03}", "running") for number in range(100)]
    console.print(_rendered(status_of(processes=[*many, process_of("lost", "missing")]), []))
    shown = Text.from_ansi(console.file.getvalue()).plain
    assert len(shown.splitlines()) < 60
    assert all(word in shown for word in ("lost", "p000", "and 61 more processes"))


def test_per_process_runs_several_processes_in_each_program(tmp_path):
    """The bank has four processes: with two in each program there are two process ids."""
    done = run_apart(
        *("up", BANK, "--store", tmp_path / "store", "--create", "--per-process", "2", "--for", "0.5", "--json")
    )
    assert done.code == 0, done.err
    processes = json.loads(done.out)["processes"]
    assert len({process["pid"] for process in processes}) == (len(processes) + 1) // 2
    logs = {path.name for path in (tmp_path / "store" / "run" / "log").glob("*+1.log")}
    assert logs == {f"{processes[0]['name']}+1.log", f"{processes[2]['name']}+1.log"}


def test_events_are_not_cut_off_on_a_narrow_terminal():
    console = Console(file=StringIO(), width=40, force_terminal=True)
    console.print(_rendered(status_of(), ["rolled back to 000001-00000003-coordinator: undone events: a 17, b 4"]))
    assert "b 4" in Text.from_ansi(console.file.getvalue()).plain


def test_an_aborted_snapshot_has_no_slowest_part():
    console = Console(file=StringIO(), width=100, force_terminal=True)
    aborted = FinishedSnapshot("000001-00000001-x", "aborted", "why", 0, 10, 1, 0, 0, 0, 0, [Part("a")])
    console.print(_rendered(status_of(finished=[aborted]), []))
    assert "a 0 ms" not in Text.from_ansi(console.file.getvalue()).plain


def test_names_with_brackets_are_shown_unchanged():
    console = Console(file=StringIO(), width=120, force_terminal=True)
    taken = FinishedSnapshot(
        "000001-00000001-w[/1]", "committed", "", 0, 10, 1, 0, 0, 0, 0, [Part("w[a]", stored=True)]
    )
    console.print(
        _rendered(status_of(processes=[process_of("w[/1]", "running")], finished=[taken]), ["w[/2] has left"])
    )
    shown = Text.from_ansi(console.file.getvalue()).plain
    assert all(name in shown for name in ("\nw[/1] ", "1.1 ", "w[a] 0 ms", "w[/2] has left"))


def test_quiet_shows_nothing(capsys):
    with UpDisplay(quiet=True) as watch:
        watch.show_event("something")
        watch.show(status_of())
    assert capsys.readouterr() == ("", "")
