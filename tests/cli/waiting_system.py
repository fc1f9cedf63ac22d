"""A system whose handler does not return before the test allows it."""

from tests.cli.reported import reported

from strobe import Context, Process, System


class Waiting(Process):
    def start(self, ctx: Context) -> None:
        ctx.set_timer("wait", 0.001)

    def timer(self, ctx: Context, name: str) -> None:
        assert reported.wait(20)

    def capture(self) -> bytes:
        return b""

    def restore(self, state: bytes) -> None:
        pass


waits = System({"quiet": Waiting(), "till": Waiting()}, [])
