"""Settings that make no sense are refused before anything runs with them."""

from typing import Any

import pytest

from strobe.errors import UsageError
from strobe.runtime.settings import CoordinatorSettings, NodeSettings


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        ({"trace": "everything"}, "there is no trace 'everything'; choose one of: off, ordinals, full"),
        ({"frame_messages_max": 0}, "frame_messages_max = 0 makes no sense: it must be at least 1"),
        ({"window_bytes": -1}, "window_bytes = -1 makes no sense"),
        ({"recording_bytes_max": -1}, "recording_bytes_max = -1 makes no sense: it must be at least 0"),
        ({"spill_bytes_max": -1}, "spill_bytes_max = -1"),
        ({"backlog_bytes_max": -1}, "backlog_bytes_max = -1"),
        ({"delta_chain_max": -1}, "delta_chain_max = -1"),
        ({"patience_s": 0.0}, "patience_s = 0.0 makes no sense: it must be above 0"),
        ({"heartbeat_s": float("nan")}, "heartbeat_s = nan makes no sense"),
    ],
)
def test_a_setting_of_nodes_that_makes_no_sense_is_named(settings: dict[str, Any], problem: str) -> None:
    with pytest.raises(UsageError, match=problem):
        NodeSettings(**settings).check()


def test_the_usual_settings_make_sense() -> None:
    NodeSettings().check()
    NodeSettings(recording_bytes_max=0, spill_bytes_max=0, backlog_bytes_max=0, delta_chain_max=0).check()
    CoordinatorSettings().policy()


@pytest.mark.parametrize("settings", [{"interval_s": -1.0}, {"timeout_s": 0.0}, {"overlapping_max": 0}])
def test_a_policy_that_makes_no_sense_is_refused(settings: dict[str, Any]) -> None:
    with pytest.raises(UsageError):
        CoordinatorSettings(**settings).policy()
