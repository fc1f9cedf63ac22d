"""The event loop sleeps briefly from time to time while the writer thread has work, and only then."""

import asyncio

import pytest
from tests.runtime.link_ends import run, until

from strobe.runtime.program import writer_thread
from strobe.runtime.program.writer_thread import MOMENT_S, GilYield


@pytest.fixture
def sleeps(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    slept: list[float] = []
    monkeypatch.setattr(writer_thread, "AFTER_S", 0.0)
    monkeypatch.setattr(writer_thread, "sleep", slept.append)
    return slept


def test_the_loop_yields_at_once_and_until_the_last_job_is_done(sleeps: list[float]) -> None:
    async def scenario() -> None:
        gil_yield = GilYield()
        with gil_yield:
            await until(lambda: len(sleeps) >= 2)
            with gil_yield:
                pass
            more = len(sleeps) + 2
            await until(lambda: len(sleeps) >= more)
        await asyncio.sleep(0)
        done = len(sleeps)
        await asyncio.sleep(0.001)
        await asyncio.sleep(0.001)
        assert len(sleeps) == done
        assert set(sleeps) == {MOMENT_S}

    run(scenario())


def test_the_loop_yields_again_after_a_failed_job(sleeps: list[float]) -> None:
    async def scenario() -> None:
        gil_yield = GilYield()
        with pytest.raises(OSError, match="disk"), gil_yield:
            raise OSError("disk")
        await asyncio.sleep(0.001)
        assert sleeps == []
        with gil_yield:
            await until(lambda: sleeps)

    run(scenario())
