"""The adaptive window follows the rate of the target, between a minimum of a few frames and the settings."""

from collections.abc import Iterator

import pytest

from strobe.runtime.links.adaptive_window import AHEAD_S, LEAST_BYTES, MEASURED_S, START_BYTES, AdaptiveWindow

WINDOW, BACKLOG = 8 << 20, 2 << 20


def paced() -> AdaptiveWindow:
    window = AdaptiveWindow(BACKLOG)
    window.welcome(WINDOW)
    window.applies = True
    return window


def play(
    window: AdaptiveWindow, taken_bytes_per_s: float, sent_bytes_per_s: float, seconds: float, start_s: float = 0.0
) -> Iterator[int]:
    """Simulate a source and its target at these rates, with credit every 10 ms; yield the queued bytes each time.

    The bytes in flight never exceed the room: a fast target may have consumed them all long before the next credit.
    """
    backlog, in_flight, step_s = 0.0, 0.0, 0.01
    for step in range(1, int(seconds / step_s) + 1):
        backlog += max(0.0, min(sent_bytes_per_s * step_s, window.backlog_bytes_max - backlog))
        sent = min(backlog, window.room_bytes - in_flight)
        if sent > 0:
            if not in_flight:
                window.begin(start_s + (step - 1) * step_s)
            in_flight, backlog = in_flight + sent, backlog - sent
        taken = min(in_flight, taken_bytes_per_s * step_s)
        in_flight -= taken
        if taken:
            window.note(int(taken), int(in_flight + backlog), start_s + step * step_s)
        yield int(in_flight + backlog)


def test_C7_the_window_bounds_the_data_queued_for_a_slow_target() -> None:
    window = paced()
    waiting = list(play(window, 1e6, 1e9, 5))
    assert waiting[-1] <= 2 * AHEAD_S * 1e6 * 1.1
    assert max(waiting) <= 2 * START_BYTES  # also before the rate was known


def test_the_window_has_a_minimum_for_very_slow_targets() -> None:
    window = paced()
    assert list(play(window, 1e4, 1e9, 100))[-1] <= 2 * LEAST_BYTES
    assert window.room_bytes == window.backlog_bytes_max == LEAST_BYTES


@pytest.mark.parametrize("sent_bytes_per_s", [1e9, 1e8, 1e4])
def test_the_settings_hold_for_a_target_that_keeps_up(sent_bytes_per_s: float) -> None:
    window = paced()
    for _ in play(window, 1e9, sent_bytes_per_s, 2):
        pass
    assert (window.room_bytes, window.backlog_bytes_max) == (WINDOW, BACKLOG)


def test_the_window_grows_soon_when_a_slow_target_becomes_fast() -> None:
    window = paced()
    for _ in play(window, 1e5, 1e9, 5):
        pass
    assert window.room_bytes == LEAST_BYTES
    for _ in play(window, 1e9, 1e9, 20 * MEASURED_S, 5.0):
        pass
    assert window.room_bytes == WINDOW


def test_one_fast_interval_only_doubles_the_window() -> None:
    window = paced()
    for _ in play(window, 1e5, 1e9, 5):
        pass
    window.note(1 << 20, 1 << 20, 5 + MEASURED_S)
    assert window.room_bytes == 2 * LEAST_BYTES


def test_a_pause_without_data_does_not_shrink_the_window() -> None:
    window = paced()
    window.begin(0.0)
    window.note(START_BYTES, 0, 0.06)
    allowed = window.room_bytes
    window.begin(1000.0)
    window.note(1 << 20, 1 << 20, 1000.06)
    assert window.room_bytes >= allowed


def test_the_settings_hold_if_the_window_does_not_apply() -> None:
    window = paced()
    for _ in play(window, 1e5, 1e9, 5):
        pass
    window.applies = False
    assert (window.room_bytes, window.backlog_bytes_max) == (WINDOW, BACKLOG)
