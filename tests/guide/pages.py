"""Runs a page of docs/guide as a reader does: writes its files, runs its commands in order, compares what it shows.

A block of code whose first line is `# bank.py` is that file. One that begins with `# in bank.py` has definitions: each
replaces the one of the same name in the file, or is added. A `console` block has commands after `$ `, and what they
print. Shown lines must appear in this order; `...` stands for any lines, and `…` for any text. Ids, times, numbers and
spaces need not agree, but the value of `conserved` must. A command that is to fail has a comment with its exit code.
`strobe up` without `--for` runs on until `^C`; then its output is compared.
"""

from __future__ import annotations

import ast
import os
import re
import shlex
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from tests.cli.command_line import run

from strobe.errors import StrobeError
from strobe.runtime.api.client import Client

GUIDE = Path(__file__).parents[2] / "docs" / "guide"
PAGES = sorted(GUIDE.glob("[0-9]-*.md"))
DEADLINE_S = 60.0
PORTS = ("7400", "7480")
_BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
_FILE = re.compile(r"(?:#|--) (in )?([\w./-]+\.\w+)$")
_EXIT = re.compile(r"\s+# exit code (\d+)$")
_ID = re.compile(r"\b\d{6}-\d{8}(-\w+)?\b")
_TIME = re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d(\.\d+)?(Z| UTC)|\b\d+(\.\d+)? m?s\b")
_NUMBER = re.compile(r"\d[\d,.]*")


def free_ports(count: int) -> list[int]:
    """Return free ports. They are below those that the system gives away by itself, so nobody else takes them."""
    found: list[int] = []
    for port in range(15_000 + os.getpid() * 7 % 10_000, 32_000):
        with socket.socket() as listener, suppress(OSError):
            listener.bind(("127.0.0.1", port))
            found.append(port)
        if len(found) == count:
            return found
    raise AssertionError("no ports are free")


class Block(NamedTuple):
    """A block of a page."""

    language: str
    text: str

    @property
    def file(self) -> tuple[str, bool] | None:
        """The file that the block is, or (True) is a part of."""
        match = _FILE.match(self.text.partition("\n")[0])
        return (match[2], match[1] is not None) if match else None


class Step(NamedTuple):
    """A command, and the lines that it prints."""

    command: str
    shown: list[str]


def blocks(page: Path) -> list[Block]:
    return blocks_of(page.read_text("utf-8"))


def blocks_of(text: str) -> list[Block]:
    return [Block(*match) for match in _BLOCK.findall(text)]


def steps(block: Block) -> list[Step]:
    found: list[Step] = []
    for line in block.text.splitlines():
        if line.startswith("$ ") or line == "^C":
            found.append(Step(line.removeprefix("$ "), []))
        else:
            found[-1].shown.append(line)
    return found


def with_definitions(text: str, part: str) -> str:
    """Return `text` with the definitions of `part` in the place of those of the same names, or before the last one."""
    lines = text.splitlines()
    for node in ast.parse(part).body:
        new = ast.unparse(node) if isinstance(node, ast.Import | ast.ImportFrom) else _source(part, node)
        old = next((one for one in ast.parse("\n".join(lines)).body if names_of(one) & names_of(node)), None)
        if old is not None:
            lines[_start(old) - 1 : old.end_lineno] = new.splitlines()
        elif isinstance(node, ast.Import | ast.ImportFrom):
            lines.insert(0, new)
        else:
            # Before the system, which is the last definition of a file and uses the others.
            last = ast.parse("\n".join(lines)).body[-1]
            lines[_start(last) - 1 : _start(last) - 1] = [*new.splitlines(), "", ""]
    return "\n".join(lines) + "\n"


def names_of(node: ast.stmt) -> set[str]:
    match node:
        case ast.ClassDef(name=name) | ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
            return {name}
        case ast.Assign(targets=[ast.Name(id=name)]):
            return {name}
        case ast.ImportFrom(module=module):
            return {f"from {module}"}
        case ast.Import(names=[one]):
            return {f"import {one.name}"}
    return set()


def _start(node: ast.stmt) -> int:
    return min([node.lineno, *(one.lineno for one in getattr(node, "decorator_list", ()))])


def _source(text: str, node: ast.stmt) -> str:
    return "\n".join(text.splitlines()[_start(node) - 1 : node.end_lineno])


def plain(line: str) -> str:
    """Return a line without what differs from run to run."""
    line = _TIME.sub("N", _ID.sub("N", line))
    return " ".join((line if "conserved" in line else _NUMBER.sub("N", line)).split())


def missing_line(shown: list[str], printed: str) -> str | None:
    """Return the first shown line that was not printed in its place; None if all were."""
    printed_lines = iter([plain(line) for line in printed.splitlines()])
    for line in shown:
        if line.strip() in ("...", ""):
            continue
        pattern = re.compile(".*".join(map(re.escape, plain(line).split("…"))))
        if not any(pattern.fullmatch(candidate) for candidate in printed_lines):
            return line
    return None


class Reader:
    """Follows pages in `directory`."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.names: dict[str, object] = {}
        self._ports = dict(zip(PORTS, map(str, free_ports(len(PORTS))), strict=True))
        self._up: subprocess.Popen[str] | None = None
        self._up_step: Step | None = None

    def write_files(self, page: Path) -> None:
        """Write what earlier pages have left for later ones."""
        for block in blocks(page):
            self._write(block)

    def follow(self, page: Path) -> None:
        """Do everything that a page shows."""
        try:
            for block in blocks(page):
                if block.language == "console":
                    for step in steps(block):
                        self.do(step)
                elif not self._write(block) and block.language == "python":
                    # Spark's Java process has another current directory.
                    text = block.text.replace('"./', f'"{self.directory}/')
                    exec(compile(text, str(page), "exec"), self.names)
        finally:
            if self._up is not None and self._up.poll() is None:
                self._up.kill()
                self._up.communicate()

    def _write(self, block: Block) -> bool:
        if block.file is None:
            return False
        name, is_part = block.file
        path = self.directory / name
        path.parent.mkdir(exist_ok=True)
        text = self._local(block.text)
        path.write_text(with_definitions(path.read_text(), text) if is_part else text)
        return True

    def _local(self, text: str) -> str:
        """Replace the default ports, which may be taken here."""
        for port, free in self._ports.items():
            text = text.replace(f"127.0.0.1:{port}", f"127.0.0.1:{free}")
        return text

    def do(self, step: Step) -> None:
        """Run one command, and compare what it prints."""
        command = self._local(step.command)
        if command == "^C":
            self._stop_up()
        elif command.startswith("strobe up ") and "--for" not in command and not _EXIT.search(command):
            self._start_up(step, command)
        elif command.startswith("kill -9"):
            self._kill(command.rpartition(" ")[2])
        else:
            self._check(step, command)

    def _check(self, step: Step, command: str) -> None:
        """Run a command until it prints what is shown; one on a live system may take a moment to see its effect."""
        match = _EXIT.search(command)
        expected = int(match[1]) if match else 0
        command = _EXIT.sub("", command)
        deadline_s = time.monotonic() + (DEADLINE_S if self._up is not None else 0)
        while True:
            code, printed = self._run(command)
            missing = missing_line(step.shown, printed)
            if (code == expected and missing is None) or time.monotonic() >= deadline_s:
                break
            time.sleep(0.1)
        assert code == expected, f"$ {command}\nexit code {code}:\n{printed}"
        assert missing is None, f"$ {command}\ndoes not print, in this place:\n{missing}\nbut:\n{printed}"

    def _run(self, command: str) -> tuple[int, str]:
        if re.fullmatch(r"strobe [^|>;&$]*", command) and " up " not in command:
            result = run(*shlex.split(command)[1:])
            return result.code, result.out + result.err
        if command.startswith("curl -s http"):
            url, _, pipe = command.removeprefix("curl -s ").partition(" | ")
            with urllib.request.urlopen(url, timeout=10) as answer:
                text = answer.read().decode()
            return (0, text) if not pipe else self._shell(pipe, text)
        return self._shell(command)

    def _shell(self, command: str, given: str = "") -> tuple[int, str]:
        done = subprocess.run(
            ["bash", "-c", command],
            cwd=self.directory,
            env=self._environment,
            input=given,
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            check=False,
            timeout=DEADLINE_S,
        )
        return done.returncode, done.stdout

    @property
    def _environment(self) -> dict[str, str]:
        kept = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST")}
        return kept | {"PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}

    @property
    def _client(self) -> Client:
        return Client.of_store(str(self.directory / "snapshots"))

    def _start_up(self, step: Step, command: str) -> None:
        self._up_step = step
        self._up = subprocess.Popen(
            [sys.executable, "-m", *shlex.split(command)],
            cwd=self.directory,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env=self._environment,
        )
        self._wait(lambda client: all(one.holds for one in client.status().conditions))

    def _stop_up(self) -> None:
        assert self._up is not None, "^C belongs to a `strobe up` that runs"
        assert self._up_step is not None, "it was started by a step"
        self._up.send_signal(signal.SIGINT)
        printed = self._up.communicate(timeout=DEADLINE_S)[0]
        code, self._up = self._up.returncode, None
        assert code == 0, printed
        missing = missing_line(self._up_step.shown, printed)
        assert missing is None, f"$ {self._up_step.command}\ndoes not print:\n{missing}\nbut:\n{printed}"

    def _kill(self, name: str) -> None:
        """Kill the process that the comment of the line names, and wait as a reader does who watches the table."""
        before = self._client.status()
        os.kill(next(one.pid for one in before.processes if one.name == name), signal.SIGKILL)
        self._wait(lambda client: (now := client.status()).epoch > before.epoch and now.settled)

    def _wait(self, check) -> None:
        deadline_s = time.monotonic() + DEADLINE_S
        while time.monotonic() < deadline_s:
            assert self._up is None or self._up.poll() is None, self._up.communicate()[0]
            try:
                if check(self._client):
                    return
            except StrobeError:
                pass
            time.sleep(0.05)
        raise AssertionError("the running system does not come so far")
