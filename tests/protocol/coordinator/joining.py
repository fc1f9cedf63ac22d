"""Views with joiners, for tests."""

from tests.protocol.playbook import snapshot_id, view

from strobe.protocol import ChannelSpec
from strobe.protocol.coordinator.messages import (
    JoinWanted,
)

RING = view("p>q", "q>r", "r>p")


S1, S2 = snapshot_id(1), snapshot_id(2)


TO_S = (ChannelSpec("ps", "p", "s"), ChannelSpec("sp", "s", "p"))


JOIN_S = JoinWanted("s", TO_S)
