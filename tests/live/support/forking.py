"""Starts Strobe's programs by forking a process that has imported Strobe, since imports take most of a short run.

A program is a separate process of the operating system, with its own session, environment and standard streams, as if
it had been started by `python -m`. The tests of commands start theirs in the usual way, and so does the soak.

    python -u -m tests.live.support.forking NUMBER      the process that forks; it listens at the socket of this number
"""

import atexit
import gc
import os
import runpy
import select
import signal
import socket
import subprocess
import sys
from functools import cache
from importlib import import_module
from pathlib import Path
from socket import AF_UNIX, SOCK_SEQPACKET

import msgspec

ROOT = Path(__file__).parents[3]
REQUEST_BYTES_MAX = 1 << 17
# Modules that Strobe's programs import, including imports inside functions.
IMPORTED = (
    "strobe.cli.live.coordinator",
    "strobe.cli.live.node",
    "strobe.runtime.api.service",
    "strobe.runtime.connectors",
    "uvloop",
)


class Start(msgspec.Struct, tag=True):
    """Start a module. The first descriptor sent along is for its output; the others keep their numbers."""

    module: str
    arguments: list[str]
    environment: dict[str, str]
    directory: str
    numbers: list[int]


class Reap(msgspec.Struct, tag=True):
    """Reap a program that has ended, and answer with its exit code."""

    pid: int


class Forked:
    """Stands for `subprocess.Popen` of a forked program."""

    def __init__(self, command, *, stdin, stdout, stderr, env, pass_fds, start_new_session):
        assert (command[0], command[1], stdin) == (sys.executable, "-m", subprocess.DEVNULL)
        assert stdout == stderr
        assert start_new_session
        self.arguments = command[2:]
        start = Start(command[2], command[3:], dict(env), str(Path.cwd()), list(pass_fds))
        self.pid = _ask(start, [stdout if isinstance(stdout, int) else stdout.fileno(), *pass_fds])
        self.returncode = None
        # It stays valid, because only `_ended` reaps the program.
        self._descriptor = os.pidfd_open(self.pid)
        _forked.append(self)

    def poll(self):
        return self.returncode if self.returncode is not None else self._ended(0)

    def wait(self, timeout=None):
        if self.returncode is None and self._ended(timeout) is None:
            raise subprocess.TimeoutExpired(self.arguments, timeout)
        return self.returncode

    def send_signal(self, number):
        if self.returncode is None:
            signal.pidfd_send_signal(self._descriptor, number)

    def kill(self):
        self.send_signal(signal.SIGKILL)

    def _ended(self, seconds):
        poll = select.poll()
        poll.register(self._descriptor, select.POLLIN)
        if poll.poll(None if seconds is None else seconds * 1000):
            self.returncode = _ask(Reap(self.pid))
            os.close(self._descriptor)
            _forked.remove(self)
        return self.returncode


_forked = []


def programs():
    """Return the arguments of the forked programs that still run, by process id; /proc does not have them."""
    return {str(forked.pid): forked.arguments for forked in list(_forked) if forked.poll() is None}


def _ask(request, descriptors=()):
    server = _server()
    socket.send_fds(server, [msgspec.msgpack.encode(request)], descriptors)
    return msgspec.msgpack.decode(server.recv(REQUEST_BYTES_MAX), type=int)


@cache
def _server():
    """Start the process that forks. It ends with this one, because that closes the socket."""
    ours, theirs = socket.socketpair(AF_UNIX, SOCK_SEQPACKET)
    number = theirs.fileno()
    command = [sys.executable, "-u", "-m", __name__, str(number)]
    nowhere = {"stdin": subprocess.DEVNULL, "stdout": subprocess.DEVNULL}
    process = subprocess.Popen(command, cwd=ROOT, pass_fds=(number,), start_new_session=True, **nowhere)
    theirs.close()
    atexit.register(_end, ours, process)
    return ours


def _end(ours, process):
    ours.close()
    process.wait()


def serve(number):
    """Fork a process for each program; in the child, return the program to run. Here, exit at the end of input."""
    for module in IMPORTED:
        import_module(module)
    assert len(list(Path("/proc/self/task").iterdir())) == 1, "a process with threads cannot be forked"
    gc.freeze()
    with socket.socket(fileno=number) as ours:
        while True:
            data, descriptors, _, _ = socket.recv_fds(ours, REQUEST_BYTES_MAX, 8)
            if not data:
                sys.exit()
            request = msgspec.msgpack.decode(data, type=Start | Reap)
            if isinstance(request, Reap):
                answer = os.waitstatus_to_exitcode(os.waitpid(request.pid, 0)[1])
            elif (answer := os.fork()) == 0:
                break
            for descriptor in descriptors:
                os.close(descriptor)
            ours.send(msgspec.msgpack.encode(answer))
    become(request, descriptors)
    return request


def become(start, descriptors):
    """Give this process what `subprocess.Popen` would have given it."""
    os.setsid()
    output, *others = descriptors
    os.dup2(output, 1)
    os.dup2(output, 2)
    os.close(output)
    for descriptor, number in zip(others, start.numbers, strict=True):
        if descriptor != number:
            os.dup2(descriptor, number)
            os.close(descriptor)
    os.chdir(start.directory)
    os.environ.clear()
    os.environ.update(start.environment)
    sys.argv[1:] = start.arguments
    sys.path[0] = start.directory


if __name__ == "__main__":
    runpy.run_module(serve(int(sys.argv[1])).module, run_name="__main__", alter_sys=True)
