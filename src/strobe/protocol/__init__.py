"""The snapshot protocols: pure state machines. Events in, effects out; no I/O, clock, randomness or logging.

The duties of a host, which is whatever drives these machines (simulator, explorer, live runtime):

1. Run handlers one at a time, to completion. What a handler sent goes to the protocol as `MessagesSent` when it has
   ended, one per channel, in the order of the channels' first sends.
2. Take frames, markers and view frames from each channel in the order in which they came, and hand each to `handle`
   when the process is ready for it; what waits at the machine is still in the channel.
3. Carry out effects in the order given, before handing over the next event. `RecordState` captures at once.
4. Keep state and counters of a process together: a process that comes back from a crash has both as they were after
   the same event, and is told `Restarted`; its recordings are lost. One without its state is `ProcessWithoutState`.
5. Keep a finished fragment until its snapshot's outcome is known, and send it again when asked to record again.
6. Where no outcome comes for a set time, say `SnapshotAborted` to the process: its buffers are freed (E7).
7. Tell a process that joins `SnapshotsSettled` before anything else.
8. Verify the proof of a snapshot before committing it (`strobe.causality.verify`): what broke a channel's promise at
   one process must never make a snapshot that claims to be good (M2).
9. Give a process its orders in the order in which the coordinator gave them.
10. On `TellRestore`, end everything of the epoch before: timers, recordings, what is on the way. Give the process its
    recorded state, make its protocol with `restored`, hand over the recorded frames before anything from the wire, and
    tell `Drained`. Never take what was sent in another epoch (R1).
11. What is most frequent may go past events and effects: `take_plain` counts a frame from which only its delivery
    follows, `number` counts what is sent. A host that uses neither does the same, and takes longer.

12. Where the protocol has `barriers`: hold back what `HoldChannel` names, without taking more credit than a channel
    has, until `ResumeChannel`. Where it `overtakes`: tell `BarrierArrived` of a barrier as soon as it reaches the
    machine and the process is between two events, whatever waits; let `SendBarrier` overtake what waits for credit.

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
