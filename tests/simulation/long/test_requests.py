"""Requests and replies in the simulator: each request is answered once, under every fault (R1, E13)."""

import re
from pathlib import Path

import msgspec
import pytest
from examples import orders

from strobe import Channel, Requests, System
from strobe.simulation import Faults, World, all_checkers
from strobe.simulation.faults import KINDS

PAGE = Path(__file__).parents[3] / "docs" / "requests.md"
EVERYTHING = f"{','.join(KINDS)},rollbacks"


def system(shop=orders.Shop):
    channels = [Channel(*ends) for ends in (("north", "bank"), ("bank", "north"))]
    messages = [orders.Charge, orders.Charged]
    return System({"north": shop(), "bank": orders.Bank()}, channels, messages, conserved=orders.books)


def run(system, seed, faults):
    faults = faults if isinstance(faults, Faults) else Faults.parse(faults)
    world = World(system, seed, faults=faults, checkers=all_checkers())
    world.run(15)
    return world


@pytest.mark.parametrize("seed", range(6))
def test_R1_each_request_is_answered_once_under_all_faults(seed):
    """The example's `conserved` counts the money, and the open requests without a message in flight."""
    world = run(orders.shops, seed, EVERYTHING.replace("membership,", ""))
    assert world.violations == []
    ledger = world.nodes["north"].process.ledger
    assert ledger.requests.last_number > 20
    assert ledger.sold


def test_requests_that_are_not_part_of_the_state_are_found():
    """The mutant restores everything but its open requests."""

    class Forgetful(orders.Shop):
        def restore(self, state):
            self.ledger = msgspec.structs.replace(state, requests=Requests())

    faults = Faults(delay_us_max=20_000, rollback_every_us=60_000)
    assert run(system(), 1, faults).violations == []
    assert {one.checker for one in run(system(Forgetful), 1, faults).violations} == {"conservation"}


def test_the_program_of_the_page_runs():
    names = {}
    exec(re.findall(r"^```python\n(.*?)^```", PAGE.read_text("utf-8"), re.MULTILINE | re.DOTALL)[0], names)
    channels = [Channel("shop", "bank"), Channel("bank", "shop")]
    page = System({"shop": names["Shop"](), "bank": names["Bank"]()}, channels, [names["Charge"], names["Charged"]])
    world = run(page, 1, "delays")
    ledger = world.nodes["shop"].process.ledger
    assert (ledger.sold, ledger.requests.open) == (5, {})
