"""Live: the trace of real processes verifies and replays (R4); input and output are exactly-once despite kills (R2)."""

import json
import re

from tests.cli.command_line import BANK, REPOSITORY, run
from tests.live.support.harness import running, wait_until

from strobe.runtime import IngressLog

ORDERS = 60


def test_R4_a_live_trace_verifies_and_its_replay_gives_the_snapshots(tmp_path):
    with running(tmp_path, BANK, list("abcd"), "--interval", "0.1", "--trace", "full") as live:
        live.wait_running()
        wait_until("some segments of each", lambda: _fewest_segments(tmp_path, "epoch-000001") >= 4, between=live.tick)
        live.kill("b")
        live.wait_rolled_back(1)
        live.wait_committed(4)
    for epoch, least in (("epoch-000001", 1), ("epoch-000002", 3)):
        directory = tmp_path / "store" / "run" / "trace" / epoch
        verified = run("trace", "verify", directory, "--json")
        assert verified.code == 0, verified
        assert sum(cut["verdict"] == "holds" for cut in verified.document["cuts"]) >= least
        replayed = run("trace", "replay", directory, "--system", BANK, "--json")
        assert replayed.code == 0, replayed
        assert len(replayed.document["snapshots"]) >= least


def test_R2_every_order_is_taken_and_reported_once_despite_kills(tmp_path, monkeypatch):
    text = (REPOSITORY / "docs" / "outside.md").read_text("utf-8")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "shop.py").write_text(re.findall(r"```python\n(.*?)```", text, re.DOTALL)[0])
    orders, audit = tmp_path / "orders.jsonl", tmp_path / "audit.jsonl"

    def order(first, last):
        with orders.open("a") as file:
            for number in range(first, last):
                file.write(json.dumps({"item": str(number), "count": 1}) + "\n")

    def wait_reported(count):
        wait_until(f"{count} orders reported", lambda: audit.exists() and _lines(audit) == count, between=live.tick)

    order(0, ORDERS // 3)
    with running(tmp_path, f"{tmp_path / 'shop.py'}:shop", ["till"], "--interval", "0.1") as live:
        live.wait_running()
        for part in (1, 2, 3):
            wait_reported(part * ORDERS // 3)
            if part < 3:
                order(part * ORDERS // 3, (part + 1) * ORDERS // 3)
                live.kill("till")
    reports = [json.loads(line) for line in audit.read_text().splitlines()]
    assert reports == [{"item": str(number), "sold": number + 1} for number in range(ORDERS)]


def test_R2_input_of_an_ingress_log_takes_effect_once_despite_kills(tmp_path, monkeypatch):
    """R2: records are appended while the system runs, is killed, and rolls back to before they were read."""
    text = (REPOSITORY / "docs" / "outside.md").read_text("utf-8")
    monkeypatch.chdir(tmp_path)
    shop = re.findall(r"```python\n(.*?)```", text, re.DOTALL)[0].replace("FileSource", "IngressLog")
    (tmp_path / "shop.py").write_text(shop.replace("orders.jsonl", "orders.log"))
    audit = tmp_path / "audit.jsonl"
    ingress = IngressLog(tmp_path / "orders.log")

    def wait_reported(count):
        wait_until(f"{count} orders reported", lambda: audit.exists() and _lines(audit) == count, between=live.tick)

    kills = (ORDERS // 3, ORDERS // 2, ORDERS - 10)
    with running(tmp_path, f"{tmp_path / 'shop.py'}:shop", ["till"], "--interval", "0.1") as live:
        for number in range(ORDERS):
            ingress.append({"item": str(number), "count": 1})
            if number == kills[-1]:
                wait_reported(number + 1)
            if number in kills:
                live.wait_rolled_back(kills.index(number))  # it runs again after the previous kill
                live.kill("till")
        wait_reported(ORDERS)
        assert live.wait_rolled_back(len(kills)).epoch == 1 + len(kills)
    ingress.close()
    reports = [json.loads(line) for line in audit.read_text().splitlines()]
    assert reports == [{"item": str(number), "sold": number + 1} for number in range(ORDERS)]


def _fewest_segments(directory, epoch):
    """Return the lowest number of segments that any process has written."""
    trace = directory / "store" / "run" / "trace" / epoch
    return min(len(list((trace / process).glob("*.parquet"))) for process in "abcd")


def _lines(path):
    return path.read_bytes().count(b"\n")
