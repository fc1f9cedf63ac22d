"""Systems that send as fast as they can, for the measurements of the live runtime."""

import msgspec

from strobe import Channel, Process, System


class Parcel(msgspec.Struct, array_like=True):
    """About 100 bytes on the wire."""

    id: int
    load: bytes


class Count(msgspec.Struct):
    messages: int


class Pump(Process):
    """Sends bursts without end; only back-pressure slows it down."""

    def __init__(self, burst=512, load=92):
        self.burst = burst
        self.parcel = Parcel(1 << 20, bytes(load))
        self.count = Count(0)

    def start(self, ctx):
        ctx.set_timer("go", 0)

    def timer(self, ctx, name):
        send, parcel, channel = ctx.send, self.parcel, ctx.outputs[0]
        for _ in range(self.burst):
            send(channel, parcel)
        self.count.messages += self.burst
        ctx.set_timer("go", 0)

    def receive(self, ctx, channel, message):
        pass

    def capture(self):
        return self.count

    def restore(self, state):
        self.count = state


class Drain(Process):
    """Counts what comes."""

    def __init__(self):
        self.count = Count(0)

    def receive(self, ctx, channel, parcel):
        self.count.messages += 1

    def capture(self):
        return self.count

    def restore(self, state):
        self.count = state


pair = System({"pump": Pump(), "drain": Drain()}, [Channel("pump", "drain")], [Parcel])
