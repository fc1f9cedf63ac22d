"""Which errors are retried, with which back-off."""

import asyncio
import logging

import pytest

from strobe.errors import (
    SnapshotCorrupt,
    StoreCorrupt,
    StoreError,
    StoreFormatError,
    StoreMissing,
    StrobeError,
    TransportError,
    UsageError,
)
from strobe.runtime import retry
from strobe.runtime.retry import RetryLoop, is_transient


def caused(error: StrobeError, cause: BaseException) -> StrobeError:
    error.__cause__ = cause
    return error


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (StoreError("s3://bucket/shop", "is unreachable"), True),
        (caused(StrobeError("sink out.jsonl"), OSError(28, "no space left on device")), True),
        (caused(StrobeError("sink out.jsonl"), IsADirectoryError()), False),
        (IsADirectoryError(), False),
        (StrobeError("a bug of somebody's"), False),
        (caused(StrobeError("sink out.jsonl"), ValueError("no number")), False),
        (TransportError("nobody is there"), False),
        (StoreFormatError("/data/shop", "is of another version"), False),
        (StoreMissing("/data/shop", "holds no store"), True),
        (StoreCorrupt("/data/shop", "blobs/1", "is missing"), False),
        (caused(StoreCorrupt("/data/shop", "blobs/1", "is missing"), FileNotFoundError()), False),
        (SnapshotCorrupt("1-1-a", "its bytes do not match"), False),
        (caused(UsageError("a source that is not there"), FileNotFoundError()), False),
    ],
)
def test_only_transient_errors_are_retried(error: StrobeError | OSError, expected: bool) -> None:
    assert is_transient(error) is expected


class Flaky:
    """Raises one problem after the other, then returns 7."""

    def __init__(self, *problems: str) -> None:
        self.problems = list(problems)

    async def __call__(self) -> int:
        if self.problems:
            raise StoreError("/data/shop", self.problems.pop(0))
        return 7


def test_back_off_grows_to_a_limit_and_each_problem_is_logged_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    waits = RetryLoop("a")
    slept: list[tuple[float, str]] = []

    async def sleep(seconds: float) -> None:
        slept.append((seconds, waits.waiting))

    monkeypatch.setattr(retry, "sleep", sleep)
    with caplog.at_level(logging.WARNING):
        assert asyncio.run(waits.until_done(Flaky(*(["is away"] * 4 + ["is full"] * 4)))) == 7
    assert [seconds for seconds, _ in slept] == [0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 5.0, 5.0]
    assert [problem for _, problem in slept] == ["store /data/shop: is away"] * 4 + ["store /data/shop: is full"] * 4
    assert [record.getMessage() for record in caplog.records] == [
        "process a cannot begin yet: store /data/shop: is away; trying again",
        "process a cannot begin yet: store /data/shop: is full; trying again",
    ]
    assert waits.waiting == ""


def test_a_permanent_error_is_raised_at_once() -> None:
    async def attempt() -> None:
        raise StoreCorrupt("/data/shop", "blobs/1", "is missing")

    with pytest.raises(StoreCorrupt):
        asyncio.run(RetryLoop("a").until_done(attempt))
