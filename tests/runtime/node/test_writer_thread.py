"""The loop sleeps for a moment now and then while the thread that writes has work, and never otherwise."""

import asyncio

import pytest
from tests.runtime.link_ends import run, until

from strobe.runtime.node import writer_thread
from strobe.runtime.node.writer_thread import MOMENT_S, GilYield


@pytest.fixture
def moments(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    slept: list[float] = []
    monkeypatch.setattr(writer_thread, "AFTER_S", 0.0)
    monkeypatch.setattr(writer_thread, "sleep", slept.append)
    return slept


def test_it_gives_way_at_once_and_again_until_the_last_job_is_done(moments: list[float]) -> None:
    async def scenario() -> None:
        way = GilYield()
        with way:
            await until(lambda: len(moments) >= 2)
            with way:
                pass
            more = len(moments) + 2
            await until(lambda: len(moments) >= more)
        await asyncio.sleep(0)
        done = len(moments)
        await asyncio.sleep(0.001)
        await asyncio.sleep(0.001)
        assert len(moments) == done
        assert set(moments) == {MOMENT_S}

    run(scenario())


def test_it_begins_again_after_a_failed_job(moments: list[float]) -> None:
    async def scenario() -> None:
        way = GilYield()
        with pytest.raises(OSError, match="disk"), way:
            raise OSError("disk")
        await asyncio.sleep(0.001)
        assert moments == []
        with way:
            await until(lambda: moments)

    run(scenario())
