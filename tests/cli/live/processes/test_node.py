"""`strobe node`: one process of a live system, and how it ends."""

import json
import logging
import os
import signal
import subprocess
import sys
from contextlib import contextmanager

import pytest
from tests.cli.command_line import BANK, REPOSITORY, refused, run
from tests.support.listening import listening

from strobe.cli.live.node import _coordinator_at

NOBODY = "127.0.0.1:1"  # nothing listens there, so a node waits for its coordinator
OWN_LOOP = str(REPOSITORY / "examples" / "own_loop.toml")


@pytest.fixture
def loggers():
    """Restore the loggers, which a node redirects to stderr."""
    known = [logging.getLogger(name) for name in ("strobe", "asyncio")]
    before = [(logger.handlers, logger.level, logger.propagate) for logger in known]
    yield
    for logger, (handlers, level, propagate) in zip(known, before, strict=True):
        logger.handlers, logger.propagate = handlers, propagate
        logger.setLevel(level)


@contextmanager
def waiting_node(*words, **how):
    """Run a node that waits for its coordinator; yield it when it has logged that."""
    command = [sys.executable, "-m", "strobe", "node", BANK, "--name", "a", "--coordinator", NOBODY, *words]
    with subprocess.Popen(command, cwd=REPOSITORY, stderr=subprocess.PIPE, text=True, **how) as node:
        try:
            line = node.stderr.readline()
            assert f"no connection to the coordinator at {NOBODY}" in line, line
            yield node, line
        finally:
            node.kill()


@pytest.mark.parametrize(
    ("given", "listens", "warns"),
    [
        (None, "0.0.0.0:7400", True),
        (None, "[::]:7400", True),
        (None, "10.0.0.1:7400", False),
        ("10.0.0.1:7400", "0.0.0.0:7400", False),
        ("0.0.0.0:7400", "0.0.0.0:7400", False),
    ],
)
def test_a_coordinator_on_all_interfaces_must_be_named_on_another_host(given, listens, warns, caplog):
    _coordinator_at(given, listens)
    assert ("other host, give --coordinator HOST:7400" in caplog.text) == warns


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 0), (signal.SIGINT, 130)])
def test_a_signal_ends_it_cleanly(number, code):
    with waiting_node() as (node, _):
        node.send_signal(number)
        assert node.wait(30) == code
        assert "Traceback" not in node.stderr.read()


@pytest.mark.parametrize(
    ("words", "host"),
    [((), "127.0.0.1"), (("--listen", "127.0.0.1:0"), "127.0.0.1"), (("--listen", "0.0.0.0:0"), "0.0.0.0")],
)
def test_it_listens_on_loopback_by_default(words, host):
    with waiting_node(*words) as (node, _):
        assert [place[0] for place in listening(node.pid)] == [host]


def test_it_ends_when_its_parent_has_ended():
    lifeline, held = os.pipe()
    environment = os.environ | {"STROBE_LIFELINE": str(lifeline)}
    with waiting_node(pass_fds=(lifeline,), env=environment) as (node, _):
        os.close(lifeline)
        os.close(held)
        assert node.wait(30) == 0


def test_its_log_is_one_json_object_per_line_on_request():
    with waiting_node("--json-logs") as (_, line):
        entry = json.loads(line)
        assert (entry["level"], entry["process"]) == ("warning", "a")


@pytest.mark.parametrize(
    ("words", "part"),
    [
        ([BANK, "--name", "z"], "the system has no process 'z'; its processes are: a, b, c, d"),
        ([OWN_LOOP, "--name", "shop"], "it is a program with its own event loop"),
        ([BANK, "--name", "a", "--coordinator", "nowhere"], "--coordinator"),
        ([BANK, "--name", "a", "--listen", "127.0.0.1:99999"], "--listen"),
        ([BANK, "--name", "a", "--key", "no-such-key"], "no-such-key"),
        ([BANK], "missing option '--name'"),
        ((BANK, "--name", "a", "--name", "a"), "--name a is given twice"),
        ((BANK, "--name", "a", "--name", "b", "--listen", "127.0.0.1:7401"), "each of 2 processes needs a port"),
    ],
)
def test_bad_input_is_refused(loggers, words, part):
    refused(run("node", *words), part)
