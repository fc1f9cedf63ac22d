"""The state of an endpoint, as a process hands it over to its successor in the same epoch (E11).

It is taken between two events, after all recordings were aborted (`Restarted`), in a settled view: so there are no
channels that end and no frames of a later view. It has no part of the application's state.
"""

from typing import Annotated

import msgspec

from strobe.errors import UsageError
from strobe.names import Name
from strobe.protocol.process.aligned import Aligned
from strobe.protocol.process.channels import Incoming
from strobe.protocol.process.endpoint import Endpoint
from strobe.protocol.process.registry import PROTOCOLS
from strobe.protocol.values.bounds import KEYS_MAX, Count, ViewNumber
from strobe.protocol.values.frames import Frontier
from strobe.protocol.values.ids import SnapshotId
from strobe.protocol.values.view import View


class ReceivedState(msgspec.Struct, frozen=True):
    """The receiver's end of a channel. The fields are those of `Incoming`."""

    frontier: Frontier
    next_ordinal: Count
    restored_to: Count
    ahead: tuple[Count, ...] = ()
    begun: dict[Count, Count] = {}


class EndpointState(msgspec.Struct, frozen=True):
    """Everything that an endpoint remembers between two events, apart from its recordings."""

    view: View
    announced: ViewNumber
    sent: Annotated[dict[Name, Frontier], msgspec.Meta(max_length=KEYS_MAX)]
    received: Annotated[dict[Name, ReceivedState], msgspec.Meta(max_length=KEYS_MAX)]
    index: Count
    counter_floor: Count
    counter_seen: Count
    closed: tuple[SnapshotId, ...] = ()
    newest: SnapshotId | None = None


def hand_over_obstacle(endpoint: Endpoint) -> str:
    """Return why `endpoint` cannot be handed over now; empty if it can be."""
    if endpoint.ending or endpoint.early or endpoint.departing or endpoint.process not in endpoint.view.members:
        return "its view is changing"
    return ""


def state_of(endpoint: Endpoint) -> EndpointState:
    """Return the state of `endpoint`, which must have no obstacle and no open recordings."""
    assert not hand_over_obstacle(endpoint), "the host checks that first"
    return EndpointState(
        endpoint.view,
        endpoint.announced,
        {channel: outgoing.frontier() for channel, outgoing in endpoint.outgoing.items()},
        {channel: _received(incoming) for channel, incoming in endpoint.incoming.items()},
        endpoint.index,
        endpoint.counter_floor,
        endpoint.counter_seen,
        tuple(sorted(endpoint.closed)),
        endpoint.newest if isinstance(endpoint, Aligned) else None,
    )


def resumed_endpoint(protocol: str, process: str, epoch: int, state: EndpointState) -> Endpoint:
    """Return the endpoint of a successor, which goes on from `state`; UsageError if the state is not of `process`."""
    endpoint = PROTOCOLS[protocol](process, state.view, epoch)
    if endpoint.outgoing.keys() != state.sent.keys() or endpoint.incoming.keys() != state.received.keys():
        raise UsageError(f"what {process} was handed over has other channels than its view {state.view.number}")
    for channel, outgoing in endpoint.outgoing.items():
        outgoing.restore(state.sent[channel])
    for channel, incoming in endpoint.incoming.items():
        _resume(incoming, state.received[channel])
    endpoint.announced, endpoint.index = state.announced, state.index
    endpoint.counter_floor, endpoint.counter_seen = state.counter_floor, state.counter_seen
    endpoint.closed = set(state.closed)
    if isinstance(endpoint, Aligned):
        endpoint.newest = state.newest
    return endpoint


def _received(incoming: Incoming) -> ReceivedState:
    ahead, begun = tuple(sorted(incoming.ahead)), dict(incoming.begun)
    return ReceivedState(incoming.frontier(), incoming.next_ordinal, incoming.restored_to, ahead, begun)


def _resume(incoming: Incoming, state: ReceivedState) -> None:
    incoming.restore(state.frontier, ())
    incoming.next_ordinal, incoming.restored_to = state.next_ordinal, state.restored_to
    incoming.ahead, incoming.begun = set(state.ahead), dict(state.begun)
