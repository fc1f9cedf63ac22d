"""`strobe up`: a whole system on this machine, and how it ends."""

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
from tests.cli.command_line import BANK, REPOSITORY, Result, refused, run, run_apart
from tests.live.harness import wait_until

from strobe.cli.arguments.live_options import load_live
from strobe.cli.arguments.systems import open_system
from strobe.cli.live import child as children
from strobe.cli.live import child_log
from strobe.cli.live import supervisor as supervising
from strobe.cli.live.child import Child, Gone
from strobe.cli.live.child_log import ChildLog
from strobe.cli.live.supervisor import ChildFailed, Supervisor, _with_options
from strobe.cli.live.up import coordinator_options
from strobe.cli.live.up_display import UpDisplay, _picture
from strobe.cli.live.up_session import Session
from strobe.cli.shell.signals import interruptible
from strobe.errors import LogReplaced, TransportError
from strobe.protocol.values.log_entries import EntryRef
from strobe.runtime.api.client import Client
from strobe.runtime.api.discovery import Discovered
from strobe.runtime.messages.api_documents import FinishedSnapshot, Part, ProcessStatus, RollbackReport, Status
from strobe.runtime.messages.verdicts import ConditionStatus, ConditionVerdict
from strobe.storage import Store


def status_of(**changes):
    fields = dict.fromkeys(Status.__struct_fields__, 0)
    fields |= {
        name: []
        for name in ("processes", "channels", "open", "finished", "rollbacks", "troubles", "left", "conditions")
    }
    fields |= dict.fromkeys(("system", "store", "protocol", "listen"), "")
    fields |= {"settled": True, "rolling_back": False, "halted": None, "api": "127.0.0.1:1"}
    return Status(**(fields | changes))


@contextmanager
def started_up(*words, cwd=REPOSITORY):
    """Run `strobe up` in a process of its own, from when it says that the system runs; in the end it is killed."""
    command = [sys.executable, "-m", "strobe.cli", "up", *map(str, words), "--create"]
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
    """Tell whether a coordinator answers, and says that everybody runs."""
    try:
        status = Client.of_store(str(store)).status()
    except TransportError:
        return False
    return status.settled and all(process.state == "running" for process in status.processes)


def interrupted(program):
    """Interrupt it once, and return how it ended."""
    program.send_signal(signal.SIGINT)
    out, err = program.communicate(timeout=60)
    return Result(program.returncode, out, err)


def children_of(pid):
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def assert_gone(pids):
    assert pids
    for pid in pids:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)


def test_an_interrupt_takes_a_last_snapshot_from_which_the_bank_goes_on(tmp_path):
    """R1, E1: the example that runs in the simulator runs live, unchanged; --json is one document."""
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
        os.kill(pids[0], signal.SIGSTOP)  # the coordinator does not answer: nothing ends in good order
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
        for pid, one in zip(pids, watched, strict=True):
            poll = select.poll()
            poll.register(one, select.POLLIN)
            assert poll.poll(30_000), f"child {pid} lives on"
            os.close(one)


def test_a_process_that_cannot_run_stops_everything_and_says_why(tmp_path):
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
        ([BANK, "--store", "ftp://host/snapshots"], "ftp:// is no kind of store"),
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
    """S1: as `strobe coordinator` says it."""
    (tmp_path / "file").touch()
    for words in ((), ("--create",)):
        refused(run("up", BANK, "--store", tmp_path / "file", *words), f"store {tmp_path}/file: is not a directory")


# Without processes


def test_programs_with_their_own_loop_are_left_to_the_user(tmp_path, monkeypatch):
    seen = {}

    class Fake(Supervisor):
        def start(self, before_nodes):
            seen["names"] = self._names
            self.listen = "127.0.0.1:7"
            self.client = SimpleNamespace(api="127.0.0.1:8", status=lambda: status_of(halted="enough"))

        def stop(self, asks=True):
            pass

    monkeypatch.setattr("strobe.cli.live.up.Supervisor", Fake)
    result = run("up", REPOSITORY / "examples" / "own_loop.toml", "--store", tmp_path / "store", "--create")
    assert seen["names"] == ["till"]
    assert (
        "shop is a program with its own event loop: start it yourself; its coordinator is 127.0.0.1:7\n" in result.err
    )
    assert result.code == 1  # it was halted


def test_who_has_left_is_told_of_and_not_started_until_it_is_needed(tmp_path, monkeypatch, capsys):
    """E2: started again, it would join anew, which nobody has asked for."""

    class Fake(Supervisor):
        def _await_coordinator(self, child):
            child.process.wait()
            return Discovered("127.0.0.1:7", "127.0.0.1:8", 0, 0)

    monkeypatch.setattr(Client, "status", lambda self: status_of(left=["c", "shop"]))
    Store.create(tmp_path)
    with Fake("bank.py:bank", str(tmp_path), ["b", "c"], program=[sys.executable, "-c", ""]) as supervisor:
        supervisor.start()
        assert (supervisor.starts("b"), supervisor.starts("c")) == (1, 0)
        Session(supervisor, ["shop", "till"])._tell_others(supervisor.left, supervisor.listen)
        supervisor.needed("c")
        supervisor.tick()
        assert supervisor.starts("c") == 1
    told = capsys.readouterr().err.splitlines()
    assert [line.partition(";")[0] for line in told] == [
        "c has left, and is not started",
        "shop has left, and is not started",
        "till is a program with its own event loop: start it yourself",
    ]


def test_ports_are_free_ones_unless_a_file_says_which():
    with open_system(BANK) as source:
        live = load_live(source)
        assert coordinator_options(live, None, None, []) == ["--listen", "127.0.0.1:0", "--api", "127.0.0.1:0"]
    with open_system(str(REPOSITORY / "examples" / "own_loop.toml")) as source:
        live = load_live(source)
        assert coordinator_options(live, 0.5, "full", ["node.window_bytes=9"]) == [
            *("--interval", "0.5", "--trace", "full", "--set", "node.window_bytes=9")
        ]


def test_a_port_that_is_set_is_the_one():
    with open_system(BANK) as source:
        live = load_live(source)
        api = "coordinator.api=127.0.0.1:7"
        assert coordinator_options(live, None, None, [api]) == ["--set", api, "--listen", "127.0.0.1:0"]
        both = ["coordinator.listen=127.0.0.1:8", api]
        assert coordinator_options(live, None, None, both) == ["--set", both[0], "--set", both[1]]


def test_what_was_before_this_run_is_not_told_as_if_it_happened_now(capsys):
    """A coordinator that has read its log knows of it; what ends while a coordinator is restarted is told."""
    old, new = finished_of("000001-00000001-x", 50), finished_of("000001-00000002-x", 150)
    rollbacks = [
        RollbackReport(epoch, at_us, None, f"reason {epoch}", None, {}) for epoch, at_us in ((2, 60), (3, 160))
    ]
    watch = UpDisplay()
    watch.show(status_of(started_us=100, finished=[old], rollbacks=rollbacks[:1]))
    watch.show(status_of(started_us=200, finished=[old, new], rollbacks=rollbacks))
    told = capsys.readouterr().err
    assert "reason 3" in told
    assert "000001-00000002-x committed" in told
    assert "reason 2" not in told
    assert "000001-00000001-x" not in told


@pytest.mark.parametrize(
    "said",
    [
        "12:00:01.000 error: process b ends: boom (m.py:3, in start()) process=b",
        '12:00:01.000 error: process b ends: boom (m.py:3, in start()) process=b traceback="Traceback (most ...):\n'
        '  File "m.py", line 3, in start\n    raise ValueError(error: no)\n    ^^^^^\nValueError: an error: no"',
    ],
)
def test_a_child_that_fails_says_why_in_one_line_without_its_traceback(tmp_path, lifeline, capsys, said):
    child = child_that(tmp_path, f"print({said!r}); raise SystemExit(1)")
    child.start(lifeline)
    assert ended(child) == 1
    Session(SimpleNamespace())._tell_gone(Gone("b", 1, child.last_error()))
    told = "b ended with exit code 1: boom (m.py:3, in start()); it is started again\n"
    assert capsys.readouterr().err == told


def finished_of(snapshot, ended_us):
    return FinishedSnapshot(snapshot, "committed", "", ended_us - 10, 10, 1, 0, 0, 0, 0, [])


def process_of(name, state):
    fields = dict.fromkeys(ProcessStatus.__struct_fields__, 0)
    fields |= {"name": name, "state": state, "rejected": {}, "trouble": "", "instance": "", "host": "", "address": ""}
    return ProcessStatus(**fields)


@pytest.mark.parametrize("columns", [20, 80, 200])
def test_the_table_fits_a_terminal_of_any_width(columns):
    console = Console(file=StringIO(), width=columns, force_terminal=True)
    console.print(_picture(status_of(processes=[process_of("a", "running")]), ["something has happened"]))
    lines = [Text.from_ansi(line).plain for line in console.file.getvalue().splitlines()]
    assert all(len(line) <= columns for line in lines)
    assert any(line.startswith("p") for line in lines)


def test_what_happened_is_not_cut_off_on_a_narrow_terminal():
    console = Console(file=StringIO(), width=40, force_terminal=True)
    console.print(_picture(status_of(), ["rolled back to 000001-00000003-coordinator: undone events: a 17, b 4"]))
    assert "b 4" in Text.from_ansi(console.file.getvalue()).plain


def test_an_aborted_snapshot_has_no_slowest_part():
    console = Console(file=StringIO(), width=100, force_terminal=True)
    aborted = FinishedSnapshot("000001-00000001-x", "aborted", "why", 0, 10, 1, 0, 0, 0, 0, [Part("a")])
    console.print(_picture(status_of(finished=[aborted]), []))
    assert "a 0 ms" not in Text.from_ansi(console.file.getvalue()).plain


def test_names_are_shown_as_they_are_also_with_brackets():
    console = Console(file=StringIO(), width=120, force_terminal=True)
    taken = FinishedSnapshot(
        "000001-00000001-w[/1]", "committed", "", 0, 10, 1, 0, 0, 0, 0, [Part("w[a]", stored=True)]
    )
    console.print(_picture(status_of(processes=[process_of("w[/1]", "running")], finished=[taken]), ["w[/2] has left"]))
    shown = Text.from_ansi(console.file.getvalue()).plain
    assert all(name in shown for name in ("\nw[/1] ", "000001-00000001-w[/1]", "w[a] 0 ms", "w[/2] has left"))


def test_quiet_shows_nothing(capsys):
    with UpDisplay(quiet=True) as watch:
        watch.show_event("something")
        watch.show(status_of())
    assert capsys.readouterr() == ("", "")


def test_the_first_signal_is_noted_and_the_second_interrupts():
    before = signal.getsignal(signal.SIGTERM)
    with interruptible() as interrupted:
        signal.raise_signal(signal.SIGTERM)
        assert interrupted == [signal.SIGTERM]
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
    assert signal.getsignal(signal.SIGTERM) is before


# Children


def child_that(tmp_path, program):
    return Child("b", [sys.executable, "-c"], [program], ChildLog(tmp_path / "b.log", lambda: None))


def supervising_on(store, processes, program=supervising.PROGRAM):
    Store.create(store)
    return Supervisor("bank.py:bank", str(store), processes, program=program)


@pytest.fixture
def lifeline():
    read, write = os.pipe()
    yield read
    os.close(read)
    os.close(write)


def ended(child):
    child.process.wait()
    return child.poll()


def test_a_log_that_grows_too_long_begins_anew_under_the_hands_of_its_child(tmp_path, monkeypatch):
    monkeypatch.setattr(child_log, "LOG_BYTES_MAX", 1000)
    read, write = os.pipe()
    child = child_that(tmp_path, f"import os; print('x' * 1000); os.read({read}, 1); print('later')")
    child.start(read)
    wait_until("its lines", lambda: child.log.path.stat().st_size > 1000)
    child.log.bound()
    assert child.log.path.read_bytes() == b""
    assert child.log.path.with_name("b.log.1").read_bytes() == b"x" * 1000 + b"\n"
    os.write(write, b"!")
    assert ended(child) == 0
    assert child.log.path.read_bytes() == b"later\n"
    assert child.tail() == "later"
    child.log.bound()
    assert child.log.path.read_bytes() == b"later\n"
    os.close(read)
    os.close(write)


def test_of_a_long_log_only_the_end_is_read(tmp_path, lifeline, monkeypatch):
    monkeypatch.setattr(child_log, "_TAIL_BYTES", 30)
    child = child_that(tmp_path, "print('10:00 error: too long ago'); print('.' * 20); print('10:00 error: the last')")
    child.start(lifeline)
    ended(child)
    assert child.last_error() == "the last"
    monkeypatch.setattr(child_log, "_TAIL_BYTES", 15)
    assert child.last_error() == ""


def test_what_a_command_ends_with_is_its_last_error_in_one_line(tmp_path, lifeline):
    said = "10:00 error: something else\\n  set in\\nerror: cannot listen at\\n  127.0.0.1:1: taken;\\n  free it"
    child = child_that(tmp_path, f"print('{said}')")
    child.start(lifeline)
    ended(child)
    assert child.last_error() == "cannot listen at 127.0.0.1:1: taken; free it"


def test_of_a_log_that_another_coordinator_writes_to_as_well_only_the_last_words_are_shown(tmp_path, lifeline):
    """Whoever starts a second one for the same store is told why that cannot be, and nothing of the first one."""
    log = [
        "12:00:01.000 begun snapshot=000001-00000003-coordinator",
        "error: a coordinator runs for the store already (pid 7); stop",
        "  it first:",
        "    kill 7",
        "12:00:01.010 error: the store is away",
    ]
    child = child_that(tmp_path, f"print({chr(10).join(log)!r})")
    child.start(lifeline)
    ended(child)
    assert child.last_words() == "a coordinator runs for the store already (pid 7); stop it first:\n    kill 7"


def test_a_child_that_ends_without_a_word_is_told_of_with_the_end_of_its_log(tmp_path, lifeline):
    child = child_that(tmp_path, "print('12:00:01.000 it begins'); print('Killed')")
    child.start(lifeline)
    ended(child)
    assert str(ChildFailed("b", 3, child.last_words(), False)) == (
        "b ended with exit code 3:\n12:00:01.000 it begins\nKilled"
    )


def test_a_child_that_ends_again_and_again_is_started_ever_later(tmp_path, lifeline, monkeypatch):
    now = [100.0]
    monkeypatch.setattr(children, "time", SimpleNamespace(monotonic=lambda: now[0]))
    child = child_that(tmp_path, "print('I end', flush=True); raise SystemExit(1)")
    waits = []
    for _ in range(8):
        child.start(lifeline)
        assert ended(child) == 1
        waits.append(round(child.restart_at_s - now[0], 3))
    assert waits == [0.1, 0.2, 0.4, 0.8, 1.6, 2.0, 2.0, 2.0]
    child.start(lifeline)
    now[0] += 60.0  # it has lived for long
    assert ended(child) == 1
    assert child.restart_at_s == pytest.approx(now[0] + children.RESTART_S_MIN)
    assert child.starts == 9
    assert child.tail() == "I end"  # what it said when it was started before is not shown again


@pytest.mark.parametrize(
    ("name", "code", "again"),
    [("b", 0, False), ("b", 1, True), ("b", -9, True), ("b", 70, True), ("coordinator", 0, True)],
)
def test_who_is_started_again(tmp_path, name, code, again):
    Store.create(tmp_path)
    with Supervisor("bank.py:bank", tmp_path.as_uri(), ["b"]) as supervisor:
        assert supervisor.store == str(tmp_path)
        child = supervisor._add(name, [])
        supervisor._judge(child, code)
        assert child.ended is not again
        supervisor.needed(name)
        assert child.ended is False


@pytest.mark.parametrize(
    ("name", "code"), [("b", 2), ("b", 3), ("coordinator", 1), ("coordinator", 3), ("coordinator", 5)]
)
def test_who_ends_everything(tmp_path, name, code):
    with supervising_on(tmp_path, ["b"]) as supervisor, pytest.raises(ChildFailed) as failed:
        supervisor._judge(supervisor._add(name, []), code)
    assert failed.value.exit_code == code
    assert failed.value.halted is (code == 1)


def test_a_coordinator_gets_the_newest_entry_until_the_log_was_replaced(tmp_path):
    """S1: the next one waits for a store with that entry; one that has found another log is not to wait for it."""
    with supervising_on(tmp_path, ["b"]) as supervisor:
        coordinator = supervisor._add("coordinator", ["coordinator"])
        for position in (7, 9):
            known = SimpleNamespace(last_entry=EntryRef(position, "a" * 64), pid=coordinator.pid)
            supervisor.saw(known)
        assert coordinator.arguments == ["coordinator", "--last-entry", f"9:{'a' * 64}"]
        supervisor.saw(SimpleNamespace(last_entry=EntryRef(99, "b" * 64), pid=-1))  # of another coordinator
        assert coordinator.arguments[-1].startswith("9:")
        supervisor._judge(coordinator, LogReplaced.exit_code)
        assert not coordinator.ended
        assert coordinator.arguments == ["coordinator", "--last-entry", ""]


def test_a_coordinator_that_has_run_and_cannot_come_back_is_tried_some_times_in_a_row(tmp_path):
    """E7: its port may be taken for a moment."""
    with supervising_on(tmp_path, ["b"]) as supervisor:
        coordinator, node = supervisor._add("coordinator", []), supervisor._add("b", [])
        coordinator.starts = node.starts = 2
        for _ in range(2):
            supervisor._judge(coordinator, -9)  # it was there meanwhile: what was before does not count
            for _ in range(supervising.RETURNS_MAX):
                supervisor._judge(coordinator, 3)
        assert not coordinator.ended
        for child, code in ((coordinator, 3), (coordinator, 2), (node, 3)):
            with pytest.raises(ChildFailed):
                supervisor._judge(child, code)


def test_a_coordinator_that_is_gone_does_not_keep_its_nodes_waiting(tmp_path):
    """They are ended by the lifeline, at once."""
    until_cut = "import os; os.read(int(os.environ['STROBE_LIFELINE']), 1)"
    supervisor = supervising_on(tmp_path, [], program=[sys.executable, "-c"])

    def nobody(**_):
        raise TransportError("nobody is there")

    supervisor.client = SimpleNamespace(stop=nobody)
    child = supervisor._add("b", [until_cut])
    child.start(supervisor._lifeline)
    killed = []
    child.process.kill = lambda: killed.append("b")
    supervisor.stop()
    assert child.process is None
    assert not killed


def test_a_coordinator_that_takes_long_to_start_is_waited_for_and_people_are_told(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(supervising, "SLOW_START_S", 0.01)
    slow = "import time; print('now error: the store is away', flush=True); time.sleep(0.5); raise SystemExit(3)"
    with supervising_on(tmp_path, [], program=[sys.executable, "-c"]) as supervisor:
        child = supervisor._add("coordinator", [slow])
        child.start(supervisor._lifeline)
        with pytest.raises(ChildFailed):
            supervisor._await_coordinator(child)
    assert "the coordinator is still starting: the store is away; see" in capsys.readouterr().err


def test_whoever_interrupts_before_all_is_started_does_not_wait():
    interrupted = SimpleNamespace(start=lambda _: signal.raise_signal(signal.SIGINT))
    # Tests that run in the background of a shell were started with interrupts ignored.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt):
            Session(interrupted).run(None)
    finally:
        signal.signal(signal.SIGINT, before)


def test_what_is_started_again_says_that_it_belongs_to_what_was_started_before(tmp_path):
    said = "import sys; print(sys.argv[sys.argv.index('--run') + 1], flush=True); raise SystemExit(1)"
    with supervising_on(tmp_path, [], program=[sys.executable, "-c", said]) as supervisor:
        supervisor.add_node("a", "127.0.0.1:1")
        supervisor.add_node("b", "127.0.0.1:1")
        while supervisor.starts("a") < 3 or supervisor.starts("b") < 2:
            supervisor.tick()
    runs = {name: (supervisor.logs / f"{name}.log").read_text().split() for name in "ab"}
    assert runs["a"][0] == runs["a"][1] != runs["b"][0]


def test_options_given_again_take_the_place_of_those_before():
    assert _with_options(["coordinator", "--listen", "a:0", "--json-logs"], {"--listen": "a:7", "--api": "a:8"}) == [
        *("coordinator", "--json-logs", "--listen", "a:7", "--api", "a:8")
    ]


def condition(latest, **changes):
    return ConditionStatus("conserved", snapshot="s7", latest=latest, **changes)


CONDITIONS = {
    "conserved ✓ 800 (judged 40 of 43)": condition(
        ConditionVerdict("holds", "800", "800"), holds=40, skipped=2, undecided=1
    ),
    "conserved ✗ 790 ≠ 800 (judged 1 of 1)": condition(ConditionVerdict("violated", "800", "790"), violated=1),
    "conserved error: KeyError: 'z' (judged 0 of 1)": condition(
        ConditionVerdict("error", problem="KeyError: 'z'"), error=1
    ),
    "conserved: not judged yet (judged 0 of 0)": condition(None),
}


@pytest.mark.parametrize("line", CONDITIONS)
def test_E12_the_table_has_the_newest_verdict_and_how_many_were_judged(line):
    status = status_of(conditions=[CONDITIONS[line]])
    console = Console(file=StringIO(), width=120)
    console.print(_picture(status, []))
    assert line in console.file.getvalue()


def test_E12_each_other_verdict_is_told_once(capsys):
    watch = UpDisplay()
    for found in ("800", "800", "790", "780", "800"):
        verdict = ConditionVerdict("holds" if found == "800" else "violated", "800", found)
        watch.show(status_of(conditions=[condition(verdict)]))
    assert capsys.readouterr().err.splitlines() == [
        "snapshot s7: conserved ✓ 800",
        "snapshot s7: conserved ✗ 790 ≠ 800",
        "snapshot s7: conserved ✓ 800",
    ]
