"""A leaving process takes no part in snapshots, not even if it is asked to initiate one."""

import pytest

from strobe.protocol import PROTOCOLS, ChannelSpec, SnapshotId, View
from strobe.protocol.process.effects import RecordState, SendMarker
from strobe.protocol.process.events import SnapshotRequested, ViewInstalled


@pytest.mark.parametrize("protocol", PROTOCOLS.values(), ids=PROTOCOLS.keys())
def test_a_leaver_that_initiates_sends_no_marker_into_the_new_view(protocol):
    channels = (ChannelSpec("pq", "p", "q"), ChannelSpec("qp", "q", "p"))
    leaver = protocol("p", View(1, ("p", "q"), channels))
    leaver.handle(ViewInstalled(View(2, ("q",), ())))
    effects = leaver.handle(SnapshotRequested(SnapshotId(1, 1, "coordinator"), 2))
    assert not [effect for effect in effects if isinstance(effect, RecordState | SendMarker)]
