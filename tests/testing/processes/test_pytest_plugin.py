"""The fixtures of the pytest plugin, in a run of pytest as a user starts it."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from tests.cli.command_line import run

from strobe.cli.project.templates import SYSTEM

LEAKY = SYSTEM.replace("self.account.balance += money.amount", "self.account.balance += min(money.amount, 60)")
# The desk takes one record from a file, and emits one.
DESK = """
import msgspec
from strobe import Process

class Desk(Process):
    taken = 0

    def receive(self, ctx, channel, record):
        self.taken += 1
        ctx.emit({"taken": self.taken})

    def capture(self):
        return self.taken

    def restore(self, state):
        self.taken = state
"""
DESK_SYSTEM = """
from desk import Desk
from strobe import System
from strobe.runtime import FileSink, FileSource

desk = System({"desk": Desk()}, [], sources={"orders": FileSource("orders.jsonl", "desk")},
              sinks={"receipts": FileSink("receipts.jsonl", "desk")})
"""
DESK_SETTINGS = """
[process.desk]
class = "desk:Desk"
[source.orders]
path = "orders.jsonl"
process = "desk"
[sink.receipts]
path = "receipts.jsonl"
process = "desk"
"""
PACKAGE = {
    "shop/__init__.py": "",
    "shop/messages.py": "from leaky import Money",
    "shop/system.py": "from leaky import system as shop\nfrom .messages import Money\n",
}
FILES = {
    **PACKAGE,
    "loop.toml": "[process.shop]\n",
    "bank.py": SYSTEM,
    "leaky.py": LEAKY,
    "desk.py": DESK,
    "desk.toml": DESK_SETTINGS,
    "desk_system.py": DESK_SYSTEM,
}
TESTS = """
import bank
import leaky
import pytest
from strobe import System


def made(bank):
    return System({"a": bank.Branch(100), "b": bank.Branch(100)}, bank.system.channels, [bank.Money],
                  conserved=bank.total)


def test_named_and_sound(strobe_simulate):
    tally = strobe_simulate("bank.py:system", seeds=3, snapshots=2)
    assert (tally.runs, tally.violations) == (3, [])


def test_imported_and_sound(strobe_simulate):
    strobe_simulate(bank.system, seeds=2, snapshots=2)
    strobe_simulate(bank.system, seeds=1, snapshots=2, protocol="lai-yang", faults="delays")
    assert bank.system.processes["a"].account.balance == 100, "a copy has run"


def test_named_and_leaky(strobe_simulate):
    strobe_simulate("leaky.py:system", seeds=5)


def test_imported_and_leaky(strobe_simulate):
    strobe_simulate(leaky.system, seeds=5)


def test_in_a_package_and_leaky(strobe_simulate, monkeypatch):
    from shop.system import shop

    monkeypatch.delattr(leaky, "system")
    strobe_simulate(shop, seeds=5)


def test_made_and_leaky(strobe_simulate):
    strobe_simulate(made(leaky), seeds=5)


def test_unknown(strobe_simulate):
    strobe_simulate("bank.py:nothing")


def test_made_and_live(live_system):
    live_system(made(bank))


def test_live_in_a_package(live_system):
    live = live_system("shop.system:shop", interval_s=0)
    assert isinstance(live.snapshot().states["a"], leaky.Account)
    live.stop()


def test_own_loop_and_live(live_system):
    live_system("loop.toml")


def test_live_and_leaky(live_system):
    live = live_system(leaky.system)
    while live.snapshot().states["a"].balance + live.snapshot().states["b"].balance > 150:
        pass


@pytest.mark.parametrize("system", ["desk.toml", "desk_system.py:desk"])
def test_live_with_files(live_system, tmp_path, system):
    (tmp_path / "orders.jsonl").write_text("1\\n")
    live = live_system(system)
    receipts = tmp_path / "receipts.jsonl"
    while not receipts.exists() or not receipts.read_text():
        live.snapshot()
    assert receipts.read_text() == '{"taken":1}\\n'
    assert live.snapshot().states == {"desk": 1}


def test_live_and_killed(live_system):
    live = live_system(bank.system, interval_s=0)
    first = live.snapshot()
    assert isinstance(first.states["a"], bank.Account)
    live.kill("a")
    again = live.snapshot()
    assert bank.total(again.states, again.messages) == 200
    assert live.status().epoch == 2
    with pytest.raises(Exception, match="no process 'x' to kill; choose: a, b, coordinator"):
        live.kill("x")
    live.stop()
    with pytest.raises(Exception, match="was stopped"):
        live.status()
"""
EXPECTED = {
    "test_named_and_sound": "PASSED",
    "test_imported_and_sound": "PASSED",
    "test_named_and_leaky": "FAILED",
    "test_imported_and_leaky": "FAILED",
    "test_in_a_package_and_leaky": "FAILED",
    "test_made_and_leaky": "FAILED",
    "test_unknown": "FAILED",
    "test_made_and_live": "FAILED",
    "test_own_loop_and_live": "FAILED",
    "test_live_in_a_package": "PASSED",
    "test_live_and_leaky": "ERROR",
    "test_live_with_files[desk.toml]": "PASSED",
    "test_live_with_files[desk_system.py:desk]": "PASSED",
    "test_live_and_killed": "PASSED",
}


def environment() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if not name.startswith(("PYTEST", "COV"))}


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("users")
    for name, text in {**FILES, "test_all.py": TESTS}.items():
        (place / name).parent.mkdir(exist_ok=True)
        (place / name).write_text(text)
    return place


@pytest.fixture(scope="module")
def report(directory: Path) -> str:
    command = [sys.executable, "-W", "error", "-m", "pytest", "-rA", "-p", "no:cacheprovider"]
    done = subprocess.run(
        command, cwd=directory, env=environment(), capture_output=True, text=True, check=False, timeout=120
    )
    assert done.returncode == 1, done.stdout + done.stderr
    return done.stdout


def section(report: str, test: str) -> str:
    """The part of the report about one test that did not pass."""
    return re.split(
        r"^_+ [^\n]* _+$", report[re.search(rf"^_+ [^\n]*{test} _+$", report, re.M).end() :], maxsplit=1, flags=re.M
    )[0]


def test_each_test_has_the_outcome_that_its_system_deserves(report: str) -> None:
    found = dict(
        reversed(line.split()[:2]) for line in report.splitlines() if re.match(r"(PASSED|FAILED|ERROR) ", line)
    )
    assert {name.partition("::")[2]: outcome for name, outcome in found.items()} == EXPECTED


@pytest.mark.parametrize(
    ("test", "name"),
    [
        ("test_named_and_leaky", "leaky.py:system"),
        ("test_imported_and_leaky", "leaky.py:system"),
        ("test_in_a_package_and_leaky", "shop.system:shop"),
    ],
)
def test_a_failing_seed_prints_the_one_command_that_repeats_it(
    directory: Path, report: str, test: str, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    shown = section(report, test)
    command = re.search(r"run it again:\n  \S*strobe (simulate \S+ --seed \d+ .*)", shown)
    assert command is not None, shown
    assert command[1].split()[1] == name
    monkeypatch.chdir(directory)
    repeated = run(*command[1].split())
    assert repeated.code == 1
    first = next(line for line in repeated.out.splitlines() if line.startswith("  conservation"))
    assert first in shown


def test_a_system_without_a_name_is_repeated_by_a_call(report: str) -> None:
    assert re.search(
        r"run it again:\n  strobe_simulate\(system, seeds=1, seed=\d+, faults='all', snapshots=10\)",
        section(report, "test_made_and_leaky"),
    )


def test_mistakes_in_naming_a_system_are_explained(report: str) -> None:
    assert "choose: bank.py:system" in section(report, "test_unknown")
    assert "is not a variable of any; assign it to one" in section(report, "test_made_and_live")
    assert "process 'shop' is a program with its own event loop" in section(report, "test_own_loop_and_live")


def test_a_live_system_that_loses_money_fails_its_test(report: str) -> None:
    assert re.search(r"snapshot 0\S+: conserved: is \d+, and was \d+ in 0", section(report, "test_live_and_leaky"))


def test_a_live_system_leaves_the_files_of_its_directory_alone(directory: Path, report: str) -> None:
    assert "test_live_with_files" in report
    assert list(directory.glob("*.jsonl*")) == []


def test_the_plugin_is_cheap_and_strobe_does_without_pytest(tmp_path: Path) -> None:
    program = (
        "import strobe, strobe.cli.app, sys; assert 'pytest' not in sys.modules\n"
        "import pytest; known = set(sys.modules)\n"
        "import strobe.testing.pytest_plugin\n"
        "print(sorted(set(sys.modules) - known))"
    )
    done = subprocess.run([sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert done.stdout == "['strobe.testing', 'strobe.testing.pytest_plugin']\n"
