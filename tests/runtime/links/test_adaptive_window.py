"""What waits on a channel follows the pace of its target: no more than it takes in a moment, and never too little."""

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
    """Let a source send and its target take at these rates, with credit every 10 ms; yield what waits, each time.

    What is on the way is never more than the room: the target may have taken it all long before the credit comes.
    """
    backlog, on_the_way, step_s = 0.0, 0.0, 0.01
    for step in range(1, int(seconds / step_s) + 1):
        backlog += max(0.0, min(sent_bytes_per_s * step_s, window.backlog_bytes_max - backlog))
        sent = min(backlog, window.room_bytes - on_the_way)
        if sent > 0:
            if not on_the_way:
                window.begin(start_s + (step - 1) * step_s)
            on_the_way, backlog = on_the_way + sent, backlog - sent
        taken = min(on_the_way, taken_bytes_per_s * step_s)
        on_the_way -= taken
        if taken:
            window.note(int(taken), int(on_the_way + backlog), start_s + step * step_s)
        yield int(on_the_way + backlog)


def test_C7_before_a_slow_target_no_more_waits_than_it_takes_in_a_moment() -> None:
    window = paced()
    waiting = list(play(window, 1e6, 1e9, 5))
    assert waiting[-1] <= 2 * AHEAD_S * 1e6 * 1.1
    assert max(waiting) <= 2 * START_BYTES  # nor was it ever much


def test_however_slow_a_target_is_some_frames_may_wait_for_it() -> None:
    window = paced()
    assert list(play(window, 1e4, 1e9, 100))[-1] <= 2 * LEAST_BYTES
    assert window.room_bytes == window.backlog_bytes_max == LEAST_BYTES


@pytest.mark.parametrize("sent_bytes_per_s", [1e9, 1e8, 1e4])
def test_before_a_target_that_keeps_up_the_settings_hold(sent_bytes_per_s: float) -> None:
    window = paced()
    for _ in play(window, 1e9, sent_bytes_per_s, 2):
        pass
    assert (window.room_bytes, window.backlog_bytes_max) == (WINDOW, BACKLOG)


def test_a_target_that_was_slow_and_is_not_any_more_gets_more_before_long() -> None:
    window = paced()
    for _ in play(window, 1e5, 1e9, 5):
        pass
    assert window.room_bytes == LEAST_BYTES
    for _ in play(window, 1e9, 1e9, 20 * MEASURED_S, 5.0):
        pass
    assert window.room_bytes == WINDOW


def test_one_quick_moment_does_not_open_the_gates() -> None:
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


def test_where_the_pace_does_not_apply_the_settings_hold() -> None:
    window = paced()
    for _ in play(window, 1e5, 1e9, 5):
        pass
    window.applies = False
    assert (window.room_bytes, window.backlog_bytes_max) == (WINDOW, BACKLOG)
