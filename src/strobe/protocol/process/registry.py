"""The protocols by name, and their requirements on channels."""

from strobe.errors import UsageError
from strobe.protocol.process.aligned import Aligned
from strobe.protocol.process.aligned_then_unaligned import AlignedThenUnaligned
from strobe.protocol.process.chandy_lamport import ChandyLamport
from strobe.protocol.process.endpoint import Endpoint
from strobe.protocol.process.lai_yang import LaiYang
from strobe.protocol.process.unaligned import Unaligned
from strobe.protocol.values.frames import FIFO
from strobe.protocol.values.view import View, find_cycle

PROTOCOLS: dict[str, type[Endpoint]] = {
    kind.name: kind for kind in (ChandyLamport, LaiYang, Aligned, Unaligned, AlignedThenUnaligned)
}


def check_channels(protocol: str, view: View) -> None:
    """Raise UsageError if `protocol` does not exist, or does not support one of the channels."""
    if protocol not in PROTOCOLS:
        raise UsageError(f"there is no protocol {protocol!r}; protocols are: {', '.join(PROTOCOLS)}")
    if protocol == LaiYang.name:
        return
    for channel in view.channels:
        if channel.kind != FIFO:
            raise UsageError(
                f"channel {channel.id!r} is {channel.kind}, and {protocol} needs fifo channels: its markers could "
                f"be overtaken; use protocol='lai-yang', or make the channel fifo"
            )
    cycle = find_cycle(view) if PROTOCOLS[protocol].barriers else ()
    if cycle:
        raise UsageError(
            f"{protocol} needs channels without a cycle, and {' -> '.join(cycle)} is one: a process in it would wait "
            f"for a barrier of its own; use protocol='chandy-lamport'"
        )
