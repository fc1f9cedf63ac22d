"""Which store a coordinator takes: of its own system, and no other has it."""

import asyncio
from pathlib import Path

import pytest
from tests.runtime.fake_nodes import running, system_of

from strobe import Channel
from strobe.errors import UsageError
from strobe.protocol.log import Begin
from strobe.storage import Store


def test_a_second_coordinator_for_the_store_is_refused_while_the_first_answers(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(tmp_path / "store", http=True):
            with pytest.raises(UsageError, match="stop it first"):
                async with running(tmp_path / "store"):
                    pass

    asyncio.run(scenario())


def test_the_store_of_another_system_is_refused(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(tmp_path / "store"):
            pass
        with pytest.raises(UsageError, match="belongs to another system, of the processes a, b"):
            async with running(tmp_path / "store", system_of("x", "y")):
                pass
        simulated = Store.create(tmp_path / "simulated")
        simulated.append(Begin("000001-00000001-a", 1, "chandy-lamport", ("a",), 0), 0)
        with pytest.raises(UsageError, match="not written by a live system"):
            async with running(tmp_path / "simulated"):
                pass

    asyncio.run(scenario())


def test_E9_a_system_with_a_channel_that_its_store_does_not_have_is_refused(tmp_path: Path) -> None:
    """E9: nobody would notice that nothing travels there."""
    more = system_of("a", "b")
    more.channels = (*more.channels, Channel("a", "b", id="second"))

    async def scenario() -> None:
        async with running(tmp_path / "store"):
            pass
        with pytest.raises(UsageError, match="the system has the channel 'second', which the store"):
            async with running(tmp_path / "store", more):
                pass

    asyncio.run(scenario())


def test_E9_a_store_with_a_channel_that_the_system_has_no_more_is_refused(tmp_path: Path) -> None:
    """E9: nobody would notice that messages still travel where the system has no channel."""
    fewer = system_of("a", "b")
    dropped = fewer.channels[-1]
    fewer.channels = fewer.channels[:-1]

    async def scenario() -> None:
        async with running(tmp_path / "store"):
            pass
        with pytest.raises(UsageError, match=f"has the channel {dropped.id!r}, which the system does not have"):
            async with running(tmp_path / "store", fewer):
                pass

    asyncio.run(scenario())


def test_P1_a_store_whose_channels_have_another_hash_is_refused_with_the_way_out(tmp_path: Path) -> None:
    strong = system_of("a", "b")
    strong.hash = "blake3"

    async def scenario() -> None:
        async with running(tmp_path / "store"):
            pass
        refusal = "is hashed by xxh3 in the store .*, and cannot change to blake3; give it hash='xxh3', or give another"
        with pytest.raises(UsageError, match=refusal):
            async with running(tmp_path / "store", strong):
                pass
        async with running(tmp_path / "new", strong):
            pass
        async with running(tmp_path / "new", strong):
            pass

    asyncio.run(scenario())
