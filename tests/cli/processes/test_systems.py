"""Systems named on the command line: how they are found, loaded for each run, and refused with helpful errors."""

import shutil

import pytest
from tests.cli.command_line import REPOSITORY, refused, run

from strobe.cli.arguments.systems import open_system
from strobe.protocol.process.first_view import first_view


@pytest.fixture(autouse=True)
def bank_here(tmp_path, monkeypatch):
    """Work in a directory that has bank.py."""
    shutil.copy(REPOSITORY / "examples" / "bank.py", tmp_path)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def simulate(system, *options):
    return run("simulate", system, "--snapshots", "2", *options)


@pytest.fixture
def write(tmp_path):
    """Return a function that writes a file, with the imports it needs at the top."""

    def write_file(text, name="mine.py"):
        header = "from bank import *\nfrom strobe import *\n" if name.endswith(".py") else ""
        (tmp_path / name).write_text(header + text)
        return tmp_path / name

    return write_file


TOPOLOGY = """
protocol = "chandy-lamport"
messages = ["bank:Transfer"]
conserved = "bank:total"
store = "./snapshots"
[coordinator]
listen = "127.0.0.1:7400"
[process.a]
class = "bank:Branch"
args = {balance = 200}
listen = "127.0.0.1:7401"
[process.b]
class = "bank:Branch"
args = {balance = 300}
[[channel]]
from = "a"
to = "b"
[[channel]]
from = "b"
to = "a"
"""


def test_a_file_is_found_by_path_and_a_module_by_name():
    assert simulate("bank.py:bank").code == 0
    assert simulate("bank:bank").code == 0


def test_a_system_file_is_read(write):
    write(TOPOLOGY, "system.toml")
    result = simulate("system.toml")
    assert result.code == 0
    assert "9 passed" in result.out


def test_a_system_file_declares_invariants(write):
    write("def no_debt(snapshot): return all(one.balance >= 0 for one in snapshot.states.values())", "sound.py")
    declared = """invariants = ["sound:no_debt", "a.balance + b.balance <= 500"]\n"""
    write(declared + TOPOLOGY, "system.toml")
    result = simulate("system.toml")
    assert (result.code, "10 passed: " in result.out, ", invariants, " in result.out) == (0, True, True)
    write(declared.replace("b.balance", "c.balance") + TOPOLOGY, "system.toml")
    result = simulate("system.toml")
    assert result.code == 2
    assert "system.toml: the expression is wrong at column 13: in `invariants`: the system has no process 'c'" in (
        " ".join(result.err.split())
    )


def test_P1_a_system_file_selects_the_hash_of_its_channels(write):
    path = write('hash = "blake3"\n' + TOPOLOGY + 'hash = "xxh3"\n', "system.toml")
    result = simulate("system.toml")
    assert result.code == 0
    assert "9 passed" in result.out
    with open_system(str(path)) as source:
        hashes = {channel.id: channel.hash for channel in first_view(source.load()).channels}
    assert hashes == {"a->b": "blake3", "b->a": "xxh3"}


def test_each_load_runs_the_users_code_again(write):
    write("import helper\nsystem = helper.bank_of_two()")
    write(
        "made = []\ndef bank_of_two():\n"
        "    made.append(1)\n    assert made == [1]\n"
        "    return System({'a': Branch(1)}, [], [Transfer])",
        "helper.py",
    )
    with open_system("mine.py:system") as source:
        first, second = source.load(), source.load()
    assert first is not second
    assert first.processes["a"] is not second.processes["a"]


def test_modules_of_the_user_do_not_stay_importable(write):
    import sys

    path = list(sys.path)
    write("import helper\nsystem = bank")
    write("", "helper.py")
    assert simulate("mine.py:system").code == 0
    assert sys.path == path
    assert not {"helper", "bank", "strobe_system_mine"} & set(sys.modules)


def test_a_system_without_a_name_is_refused_with_advice():
    refused(simulate("bank.py"), "does not name a system in the file: write bank.py:name")
    refused(simulate("bank"), "file.py:name, module:name or system.toml")
    refused(simulate("bank.py:"), "is not a system")


def test_a_file_that_does_not_exist():
    refused(simulate("nothing.py:bank"), "nothing.py cannot be read: No such file")
    refused(simulate("nothing.toml"), "nothing.toml cannot be read: No such file")
    refused(simulate("nothing:bank"), "No module named 'nothing'")


def test_a_wrong_name_is_answered_with_the_names_of_systems():
    refused(simulate("bank.py:banc"), "'banc' in bank.py does not exist; choose: bank.py:bank, bank.py:bank_unordered")
    refused(simulate("bank.py:names"), "'names' in bank.py is of type tuple, not a strobe.System")


def test_a_file_that_raises_is_reported_with_file_and_line(write):
    write("import json\ndef read():\n    return json.loads('{')\nbank = read()")
    refused(simulate("mine.py:bank"), "cannot run mine.py: JSONDecodeError", "(mine.py:5, in read())")


def test_a_file_that_does_not_parse_or_exits_is_reported(write):
    write("bank = = 3")
    refused(simulate("mine.py:bank"), "SyntaxError: invalid syntax (mine.py:3)")
    write("import sys\nsys.exit('no')")
    refused(simulate("mine.py:bank"), "SystemExit: no (mine.py:4)")


@pytest.mark.parametrize("content", [bytes(range(256)), b"\x00\x01\x02", b"\x7fELF" + bytes(64)])
def test_a_binary_file_is_not_a_system(tmp_path, content):
    for name in ("blob.py", "blob.toml"):
        (tmp_path / name).write_bytes(content)
    refused(simulate("blob.py:bank"), "cannot run blob.py")
    refused(simulate("blob.toml"), "blob.toml is not TOML")


def test_a_truncated_system_file_is_refused(write):
    write(TOPOLOGY[: TOPOLOGY.index("chandy")], "system.toml")
    refused(simulate("system.toml"), "system.toml is not TOML: Unterminated string")


def test_a_topology_with_an_unknown_process(write):
    write("wrong = System({'a': Branch(1)}, [Channel('a', 'z')], [Transfer])")
    refused(simulate("mine.py:wrong"), "mine.py:wrong: channel 'a->z' names the process 'z'", "processes are: a")
    write(TOPOLOGY.replace('to = "b"', 'to = "z"'), "system.toml")
    refused(simulate("system.toml"), "system.toml: channel 'a->z' names the process 'z'", "processes are: a, b")


def test_channels_with_the_same_id(write):
    write("twice = System({'a': Branch(1)}, [Channel('a', 'a'), Channel('a', 'a')], [Transfer])")
    refused(simulate("mine.py:twice"), "two channels are called 'a->a'")


def test_chandy_lamport_refuses_an_unordered_channel():
    refused(
        simulate("bank.py:bank_unordered", "--protocol", "chandy-lamport"),
        "'a->b' is unordered, and chandy-lamport needs fifo channels",
        "lai-yang",
    )


def test_a_protocol_that_does_not_exist():
    refused(simulate("bank.py:bank", "--protocol", "paxos"), "there is no protocol 'paxos'; protocols are: ")


def test_an_empty_system(write):
    write("empty = System({}, [])")
    refused(simulate("mine.py:empty"), "mine.py:empty: the system has no processes")


@pytest.mark.parametrize(
    ("line", "instead", "problem"),
    [
        ('class = "bank:Branch"', 'class = "bank:Brunch"', "[process.a]: the module 'bank' has no 'Brunch'"),
        ('class = "bank:Branch"', 'class = "benk:Branch"', "[process.a]: the module 'benk' cannot be imported"),
        ('class = "bank:Branch"', 'class = "Branch"', "[process.a]: 'Branch' names nothing; write module:name"),
        ('class = "bank:Branch"', 'class = "bank:Account"', "[process.a]: bank:Account is not a strobe.Process"),
        ('class = "bank:Branch"', 'class = "threading:Event"', "[process.a]: threading:Event is not a strobe.Process"),
        ('class = "bank:Branch"', 'class = "bank:total"', "[process.a]: bank:total cannot be made with the arguments"),
        ("127.0.0.1:7401", "127.0.0.1:99999", "[process.a]: listen '127.0.0.1:99999' is no address; write host:port"),
        ("127.0.0.1:7400", "localhost", "[coordinator]: listen 'localhost' is no address; write host:port"),
        ('listen = "127.0.0.1:7400"', 'api = ":80"', "[coordinator]: api ':80' is no address; write host:port"),
        ("{balance = 200}", "{funds = 200}", "got an unexpected keyword argument 'funds'"),
        ('from = "a"', 'form = "a"', "unknown field `form`"),
        ("protocol =", "protocols =", "unknown field `protocols`"),
        ("protocol =", 'hash = "md5"\nprotocol =', "the system has the hash 'md5'; hashes are: xxh3, blake3"),
        ('to = "b"', 'to = "b"\nhash = "crc"', "channel 'a->b' has the hash 'crc'; hashes are: xxh3, blake3"),
    ],
)
def test_a_mistake_in_a_system_file_is_reported_with_its_place(write, line, instead, problem):
    write(TOPOLOGY.replace(line, instead, 1), "system.toml")
    refused(simulate("system.toml"), "system.toml", problem)
