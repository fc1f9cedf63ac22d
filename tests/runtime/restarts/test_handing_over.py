"""When a node asks to hand over (E11)."""

import asyncio
from types import SimpleNamespace
from typing import Any

from strobe.protocol.coordinator.restart_messages import RestartWanted
from strobe.runtime.restarts.handing_over import HandingOver


def test_E11_a_second_request_does_not_end_a_node_that_is_to_hand_over() -> None:
    """Two SIGTERMs within a moment rolled everybody back."""

    async def scenario() -> None:
        sent: list[Any] = []
        ended: list[int] = []
        hand_over = HandingOver(SimpleNamespace(name="b", takes_orders=True, send=sent.append, end=ended.append))
        hand_over.request()
        hand_over.request()
        assert (sent, ended) == ([RestartWanted("b")], [])

    asyncio.run(scenario())


def test_E11_a_node_that_shall_end_asks_again_after_a_rollback() -> None:
    """The rollback has ended the restart that was ordered for it; it would run on, or end as in a crash."""

    async def scenario() -> None:
        sent: list[Any] = []
        hand_over = HandingOver(SimpleNamespace(name="b", takes_orders=True, send=sent.append))
        hand_over.begun()
        assert sent == []
        hand_over.request()
        hand_over.cancel()
        hand_over.begun()
        assert sent == [RestartWanted("b"), RestartWanted("b")]

    asyncio.run(scenario())
