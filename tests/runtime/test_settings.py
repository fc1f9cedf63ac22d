"""Invalid settings are refused before anything runs with them."""

from typing import Any

import pytest

from strobe.errors import UsageError
from strobe.runtime.settings import CoordinatorSettings, NodeSettings, RetentionSettings, check_together


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        ({"trace": "everything"}, "there is no trace 'everything'; choose one of: off, ordinals, full"),
        ({"frame_messages_max": 0}, "frame_messages_max = 0 makes no sense: it must be at least 1"),
        ({"window_bytes": -1}, "window_bytes = -1 makes no sense"),
        ({"recording_bytes_max": -1}, "recording_bytes_max = -1 makes no sense: it must be at least 0"),
        ({"spill_bytes_max": -1}, "spill_bytes_max = -1"),
        ({"backlog_bytes_max": -1}, "backlog_bytes_max = -1"),
        ({"trace_bytes_max": 0}, "trace_bytes_max = 0 makes no sense: it must be at least 1"),
        ({"sink_bytes_max": 0}, "sink_bytes_max = 0 makes no sense: it must be at least 1"),
        ({"delta_chain_max": -1}, "delta_chain_max = -1"),
        ({"patience_s": 0.0}, "patience_s = 0.0 makes no sense: it must be above 0"),
        ({"heartbeat_s": float("nan")}, "heartbeat_s = nan makes no sense"),
    ],
)
def test_an_invalid_node_setting_is_named(settings: dict[str, Any], problem: str) -> None:
    with pytest.raises(UsageError, match=problem):
        NodeSettings(**settings).check()


def test_settings_in_seconds_become_a_policy_in_microseconds() -> None:
    policy = CoordinatorSettings(interval_s=2.5, pause_s=0.5, timeout_s=3, attempts_max=2, rollback_window_s=7).policy()
    assert (policy.interval_us, policy.pause_us_min, policy.timeout_us) == (2_500_000, 500_000, 3_000_000)
    assert (policy.attempts_max, policy.rollback_window_us) == (2, 7_000_000)


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        ({"interval_s": -1.0}, "interval_s = -1.0 makes no sense: it must be at least 0"),
        ({"pause_s": float("nan")}, "pause_s = nan makes no sense"),
        ({"timeout_s": 0.0}, "timeout_s = 0.0 makes no sense: it must be above 0"),
        ({"silence_s": 0.0}, "silence_s = 0.0 makes no sense: it must be above 0"),
        ({"interval_s": float("inf")}, "interval_s = inf makes no sense"),
        ({"overlapping_max": 0}, "overlapping_max = 0 makes no sense: it must be at least 1"),
        ({"rollbacks_max": -1}, "rollbacks_max = -1 makes no sense: it must be at least 0"),
    ],
)
def test_an_invalid_coordinator_setting_is_named(settings: dict[str, Any], problem: str) -> None:
    with pytest.raises(UsageError, match=problem):
        CoordinatorSettings(**settings).policy()


def test_the_heartbeat_interval_must_be_below_the_silence_limit() -> None:
    check_together(CoordinatorSettings(silence_s=0.6), NodeSettings(heartbeat_s=0.5))
    with pytest.raises(UsageError, match=r"silence_s = 0.5 is not more than heartbeat_s = 0.5: .*raise silence_s"):
        check_together(CoordinatorSettings(silence_s=0.5), NodeSettings(heartbeat_s=0.5))


def test_a_negative_retention_setting_is_refused() -> None:
    RetentionSettings().check()
    with pytest.raises(UsageError, match="keep_daily = -1 makes no sense: it must be at least 0"):
        RetentionSettings(keep_daily=-1).check()
