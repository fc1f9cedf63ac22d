"""The protocols by name, and what each needs of its channels."""

from strobe.errors import UsageError
from strobe.protocol.chandy_lamport import ChandyLamport
from strobe.protocol.frames import FIFO
from strobe.protocol.lai_yang import LaiYang
from strobe.protocol.view import View

PROTOCOLS: dict[str, type[ChandyLamport] | type[LaiYang]] = {
    ChandyLamport.name: ChandyLamport,
    LaiYang.name: LaiYang,
}


def check_channels(protocol: str, view: View) -> None:
    """Raise UsageError where `protocol` does not exist, or is not right on one of the channels."""
    if protocol not in PROTOCOLS:
        raise UsageError(f"there is no protocol {protocol!r}; protocols are: {', '.join(PROTOCOLS)}")
    if protocol == ChandyLamport.name:
        for channel in view.channels:
            if channel.kind != FIFO:
                raise UsageError(
                    f"channel {channel.id!r} is {channel.kind}, and {protocol} needs fifo channels: its markers could "
                    f"be overtaken; use protocol='lai-yang', or make the channel fifo"
                )
