"""A handler that does not return, in a live system: who says so, and what happens when it returns (E13)."""

import os

from tests.live.support.harness import running

SYSTEM = """
from strobe import Channel, Process, System

class Reader(Process):
    def __init__(self, pipe=None): self.pipe, self.messages = pipe, 0
    def start(self, ctx): ctx.set_timer("send", 0)
    def timer(self, ctx, name):
        for channel in ctx.outputs: ctx.send(channel, 1)
        ctx.set_timer("send", 0.01)
    def receive(self, ctx, channel, message):
        self.messages += 1
        if self.pipe and self.messages == 5: self.wait()
    def wait(self): open(self.pipe).close()
    def capture(self): return [self.messages]
    def restore(self, state): [self.messages] = state

system = System({"a": Reader(), "b": Reader("PIPE")}, [Channel("a", "b"), Channel("b", "a")], [int])
"""


def test_E13_a_blocked_handler_is_named_and_its_process_goes_on_without_a_rollback(tmp_path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    (tmp_path / "slow.py").write_text(SYSTEM.replace("PIPE", str(pipe)))
    settings = {"node.blocked_s": 0.2, "coordinator.silence_s": 1.0}
    with running(
        tmp_path, f"{tmp_path / 'slow.py'}:system", ("a", "b"), "--interval", "0.1", settings=settings
    ) as live:
        status = live.wait("the blocked handler", lambda s: [one for one in s.troubles if one.kind == "blocked"])
        call = f"Reader.receive() of b at {tmp_path / 'slow.py'}:13 in Reader.wait()"
        shown = {process.name: process.blocked for process in status.processes}
        assert shown["a"] == ""
        assert shown["b"].startswith(f"{call} has been running for ")
        live.wait("the loss of its heartbeats", lambda s: s.processes[1].state == "missing" and s.processes[1].blocked)
        pipe.write_text("")  # opens the other end, and lets the handler return
        live.wait_running()
        live.wait_committed(1)
        assert live.status().rollbacks == []
        live.wait("no trouble", lambda s: not s.troubles)
        log = live.log("b")
        assert f"warning: {call} has been running for 0." in log
        assert "in wait\n" in log
        assert f"{call} has ended, after " in log
        assert "Traceback" not in log
        assert f'blocked process=b call="{call}"' in live.log("coordinator")
