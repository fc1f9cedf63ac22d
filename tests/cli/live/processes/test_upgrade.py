"""R3, S4: a system is stopped, its state type is changed, and the new program continues from the old store."""

import re

from tests.cli.command_line import run, run_apart

from strobe.storage import Store

FIRST = """
import msgspec

from strobe import Channel, KeyedState, Process, System


class Bill(msgspec.Struct):
    euro: int


class Account(msgspec.Struct):
    balance: int
    owner: str = "ada"


class Branch(Process):
    def __init__(self):
        self.account = Account(250)

    def capture(self):
        return self.account

    def restore(self, state):
        self.account = state


class Bills(Process):
    def __init__(self):
        self.bills = KeyedState(Bill)
        self.bills["tea"] = Bill(3)

    def capture(self):
        return self.bills

    def restore(self, state):
        self.bills = state


shop = System({"a": Branch(), "b": Bills()}, [Channel("a", "b"), Channel("b", "a")])
"""
SECOND = FIRST.replace(
    "class Bill(msgspec.Struct):\n    euro: int",
    "def in_cents(bill):\n    return {'cents': 100 * bill['euro']}\n\n\n"
    "class Bill(msgspec.Struct):\n    migrations = {1: in_cents}\n\n    cents: int",
).replace("Bill(3)", "Bill(0)")
THIRD = SECOND.replace(
    'class Account(msgspec.Struct):\n    balance: int\n    owner: str = "ada"',
    "def with_cents(account):\n    return {'cents': 100 * account['balance'], 'owner': account['owner']}\n\n\n"
    "def with_owners(account):\n    return {'cents': account['cents'], 'owners': [account['owner']]}\n\n\n"
    "class Account(msgspec.Struct):\n    migrations = {1: with_cents, 2: with_owners}\n\n"
    "    cents: int\n    owners: list[str]",
).replace("Account(250)", "Account(0, [])")


def test_R3_a_system_of_a_new_version_continues_from_an_old_store(tmp_path):
    program, store = tmp_path / "shop.py", tmp_path / "store"
    system = f"{program}:shop"
    for source in (FIRST, THIRD):
        program.write_text(source)
        if source is THIRD:  # before the new version is started, its migrations can be tried
            verify = ("snapshot", "verify", "latest", "--level", "restore", "--system", system, "--store", store)
            verified = run(*verify)
            assert verified.code == 0, verified
            shown = " ".join(verified.out.split())
            assert "migrated the state of a from version 1 to 3, b from version 1 to 2" in shown
        words = ("up", system, "--store", store, "--interval", "0", "--for", "0.1", "--create")
        done = run_apart(*words)
        assert done.code == 0, done
    (last,) = [opened.load(name) for opened in [Store.open(store)] for name in [opened.resolve("latest")]]
    assert last.id.epoch == 2
    states = {name: fragment.state for name, fragment in last.fragments.items()}
    assert states["a"].data == b"\x82\xa5cents\xcd\x61\xa8\xa6owners\x91\xa3ada"
    assert {name: state.version for name, state in states.items()} == {"a": 3, "b": 2}
    assert b"\xa5cents\xcd\x01\x2c" in bytes(states["b"].data)

    program.write_text(FIRST)  # the old program again
    refused = run_apart(*words)
    assert refused.code == 1, refused
    # Both processes report it; the first report ends the system.
    newer = r"is of version (3 of Account|2 of Bill), written by a newer program"
    assert re.search(newer, " ".join(refused.err.split())), refused
