"""The snapshot protocols: pure state machines. Events in, effects out; no I/O, clock, randomness or logging.

A host is the program that drives these machines: the simulator, the explorer or the live runtime. Its duties:

1. Run handlers one at a time, to completion. When a handler has ended, pass the messages it sent to the protocol as
   `MessagesSent`, one event per channel, in the order of the channels' first sends.
2. Take frames, markers and view frames from each channel in the order in which they arrived. Pass each to `handle`
   when the process is ready for it; until then it counts as being in the channel.
3. Carry out effects in the order given, before passing the next event. `RecordState` captures at once.
4. Keep state and counters of a process together. A process that comes back from a crash has both as they were after
   the same event, and gets `Restarted`; its recordings are lost. A process that lost its state is reported to the
   coordinator as `ProcessWithoutState`.
5. Keep a finished fragment until its snapshot's outcome is known. Send it again on a second request to record.
6. If no outcome comes within a set time, pass `SnapshotAborted` to the process, which frees its buffers (E7).
7. Pass `SnapshotsSettled` to a joining process before any other event.
8. Verify the proof of a snapshot before committing it (`strobe.causality.verify`): a channel that breaks its promise at
   one process must never lead to a snapshot that claims to be good (M2).
9. Pass a process its orders in the order in which the coordinator gave them.
10. On `RestoreState`, discard everything of the previous epoch: timers, recordings, messages in transit. Give the
    process its recorded state, make its protocol with `restored`, pass the recorded frames before anything from the
    wire, and report `Drained`. Never accept a message sent in another epoch (R1).
11. The hot path may bypass events and effects: `take_plain` counts a frame that only needs to be delivered, `number`
    counts messages sent. A host that uses neither gets the same result, more slowly.
12. If the protocol has `barriers`: after `HoldChannel`, hold back the frames of that channel, within its credit, until
    `ResumeChannel`. If the protocol `overtakes`: pass `BarrierArrived` as soon as a barrier reaches the machine and the
    process is between two events, ahead of any queued frames. `SendBarrier` overtakes frames that wait for credit.

    effects = protocol.handle(FrameReceived(channel, frame))
    for effect in effects:
        match effect:
            case RecordState(): captured[effect.snapshot] = capture(process)
            case DeliverFrame(): run(process, effect.channel, effect.frame)
            case SendMarker() | SendFrame() | SendView(): wires[effect.channel].put(effect)
            case FinishFragment(): hand_over(effect.fragment, captured.pop(effect.fragment.snapshot))
            ...
"""

from strobe.protocol.coordinator.lifecycle import Lifecycle
from strobe.protocol.coordinator.policy import Policy, advise_interval_s
from strobe.protocol.process.aligned import Aligned
from strobe.protocol.process.aligned_then_unaligned import AlignedThenUnaligned
from strobe.protocol.process.chandy_lamport import ChandyLamport
from strobe.protocol.process.endpoint import Endpoint
from strobe.protocol.process.lai_yang import LaiYang
from strobe.protocol.process.registry import PROTOCOLS, check_channels
from strobe.protocol.process.unaligned import Unaligned
from strobe.protocol.values.fragment import Fragment, LocalState, Snapshot
from strobe.protocol.values.frames import FIFO, UNORDERED, Frame, Frontier, InFlight
from strobe.protocol.values.ids import COORDINATOR, SnapshotId
from strobe.protocol.values.view import ChannelSpec, View, initiators

__all__ = [
    "COORDINATOR",
    "FIFO",
    "PROTOCOLS",
    "UNORDERED",
    "Aligned",
    "AlignedThenUnaligned",
    "ChandyLamport",
    "ChannelSpec",
    "Endpoint",
    "Fragment",
    "Frame",
    "Frontier",
    "InFlight",
    "LaiYang",
    "Lifecycle",
    "LocalState",
    "Policy",
    "Snapshot",
    "SnapshotId",
    "Unaligned",
    "View",
    "advise_interval_s",
    "check_channels",
    "initiators",
]
