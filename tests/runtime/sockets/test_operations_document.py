"""The settings, metrics and examples in docs/operations match the code."""

import asyncio
import re
from configparser import ConfigParser
from pathlib import Path

import msgspec
import pytest
from tests.runtime.fake_nodes import both_alive, running

from strobe import KeyedState
from strobe.known_fields import decode_known
from strobe.migrations import migrate, version_of_type
from strobe.protocol.coordinator.messages import CannotRestore
from strobe.runtime.api.client import Client
from strobe.runtime.messages.control import Stop
from strobe.runtime.settings import CoordinatorSettings, NodeSettings

PAGES = {page.stem: page.read_text("utf-8") for page in (Path(__file__).parents[3] / "docs/operations").glob("*.md")}
UNITS = {"KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30}


def table(title):
    """Return (names, defaults) of each row of the table of settings called `title`."""
    rows = re.search(rf"^\| `\[{title}\]` .*?\n\|---.*?\n(.*?)\n\n", PAGES["settings"], re.MULTILINE | re.DOTALL)[1]
    for row in rows.splitlines():
        names, defaults = (cell.strip() for cell in row.split("|")[1:3])
        yield re.findall(r"`(\w+)`", names), [word.strip() for word in defaults.split(",")]


def as_written(text):
    number, _, unit = text.partition(" ")
    return float(number) * UNITS[unit] if unit else float(number)


@pytest.mark.parametrize(("title", "settings"), [("coordinator", CoordinatorSettings()), ("node", NodeSettings())])
def test_every_setting_is_described_with_its_default(title, settings):
    described = {name: value for names, values in table(title) for name, value in zip(names, values, strict=True)}
    assert set(described) == set(settings.__struct_fields__)
    for name, text in described.items():
        default = getattr(settings, name)
        if isinstance(default, str):
            assert default.endswith(text)
        else:
            assert as_written(text) == default, name


def test_every_metric_in_the_document_exists(tmp_path):
    async def scenario():
        async with running(tmp_path / "store", http=True) as coordinator:
            await coordinator.start_node("a")
            client = Client(coordinator.service.api)
            return await asyncio.to_thread(client.metrics)

    metrics = asyncio.run(scenario())
    named = set(re.findall(r"`(strobe_\w+)", PAGES["monitoring"]))
    assert len(named) > 3
    for metric in named:
        assert f"\n{metric}" in metrics or f"# TYPE {metric} " in metrics, metric


def test_R1_the_systemd_unit_does_not_restart_a_halted_coordinator(tmp_path):
    """R1: a crash loop is not continued by systemd; stopped nodes wait for the next coordinator."""

    async def scenario():
        async with running(tmp_path / "store", http=True) as coordinator:
            a, _ = await both_alive(coordinator)
            a.send(CannotRestore("a", 1, "its restore raises"))
            await a.handle(Stop)
            for node in coordinator.nodes:
                await node.close()
            return await coordinator.coordinator.ended

    (text,) = re.findall(r"```ini\n(.*?)```", PAGES["running"], re.DOTALL)
    unit = ConfigParser()
    unit.read_string(text)
    assert unit["Service"]["ExecStart"].startswith("strobe coordinator ")
    assert unit["Service"]["Restart"] == "on-failure"
    assert str(asyncio.run(scenario())) in unit["Service"]["RestartPreventExitStatus"].split()


def example(word):
    """Run the only Python example that contains `word`; return its names."""
    (code,) = [code for code in re.findall(r"```python\n(.*?)```", PAGES["state"], re.DOTALL) if word in code]
    names = {"__name__": "operations_example", "msgspec": msgspec}
    exec(code, names)
    return names


def test_R3_the_example_of_migrations_reads_states_of_both_older_versions():
    account = example("class Account")["Account"]
    for version, old in ((1, {"balance": 5}), (2, {"cents": 500, "currency": "EUR"})):
        current = migrate("the state", account, version, msgspec.msgpack.encode(old))
        assert decode_known(current, account) == account(500, "EUR", ["unknown"])
    assert version_of_type(account) == 3


def test_E4_the_keyed_state_example_keeps_frozen_state_and_continues():
    names = example("class Warehouse")
    warehouse, sale = names["Warehouse"](), names["Sale"]("tea", 30)
    warehouse.receive(None, "shop->warehouse", sale)
    with warehouse.capture().freeze() as frozen:
        warehouse.receive(None, "shop->warehouse", sale)
        written = b"".join(frozen.slices())
    assert warehouse.stock["tea"] == names["Stock"](40, 60)
    warehouse.restore(KeyedState.from_segments([written], names["Stock"]))
    assert dict(warehouse.stock) == {"tea": names["Stock"](70, 30)}
