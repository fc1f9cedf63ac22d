"""State types of two versions, and a process that keeps what it is given, for tests of migrations (R3)."""

from typing import Any

import msgspec

from strobe.process import Process


class First(msgspec.Struct):
    balance: int


class Second(msgspec.Struct):
    migrations = {1: lambda state: {"cents": 100 * state["balance"]}}

    cents: int


class Broken(msgspec.Struct):
    migrations = {1: lambda state: {"cents": state["euro"]}}

    cents: int


class Keeper(Process):
    def __init__(self, state: Any) -> None:
        self.state = state

    def capture(self) -> Any:
        return self.state

    def restore(self, state: Any) -> None:
        self.state = state
