"""The commands of docs/operations/running.md for several hosts work as printed; here each host is an address."""

import os
import re
import socket
import subprocess
import sys
from contextlib import ExitStack

from tests.cli.command_line import REPOSITORY, run
from tests.live.support.checks import verify_all
from tests.live.support.harness import wait_until

from strobe.errors import TransportError
from strobe.runtime.api.client import Client

TEXT = (REPOSITORY / "docs" / "operations" / "running.md").read_text(encoding="utf-8")
SECTION = TEXT.partition("## Several hosts\n")[2].partition("\n## ")[0]


def free_port(host):
    with socket.socket() as held:
        held.bind((host, 0))
        return held.getsockname()[1]


def on_this_machine(text, store):
    """Return the description with an address in 127.0.1 for each host, which no other program uses, and free ports."""

    def address(found):
        host = f"127.0.1.{found[1]}"
        return f'"{host}:{free_port(host)}"'

    text = text.replace('"/shared/snapshots"', f'"{store}"')
    return re.sub(r'"\d+\.\d+\.\d+\.(\d+):\d+"', address, text)


def test_commands_for_several_hosts_run_in_any_order(tmp_path):
    (description,) = re.findall(r"```toml\n(.*?)```", SECTION, re.DOTALL)
    commands = re.findall(r"^host \d\$ strobe (.*?)(?: *#.*)?$", SECTION, re.MULTILINE)
    assert len(commands) == 3
    (tmp_path / "system.toml").write_text(on_this_machine(description, tmp_path / "store"))
    api = re.search(r'^api = "(.*?)"', (tmp_path / "system.toml").read_text(), re.MULTILINE)[1]
    environment = os.environ | {"PYTHONPATH": str(REPOSITORY / "examples")}
    with ExitStack() as stack:
        for command in reversed(commands):  # the nodes first
            program = subprocess.Popen(
                [sys.executable, "-m", "strobe", *command.split()],
                cwd=tmp_path,
                env=environment,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
            )
            stack.callback(program.wait)
            stack.callback(program.terminate)
        client = Client(api, timeout_s=5.0)
        wait_until("three snapshots", lambda: committed(client) >= 3)
        taken = run("snapshot", "take", "--api", api)
        assert (taken.code, taken.err) == (0, "")
        listening = {process.address.partition(":")[0] for process in client.status().processes}
        assert listening == {"127.0.1.2", "127.0.1.3"}
    assert verify_all(tmp_path / "store") >= 4


def committed(client):
    try:
        return client.status().committed
    except TransportError:  # it does not answer yet
        return 0
