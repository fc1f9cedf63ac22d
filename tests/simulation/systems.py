"""Systems for the simulation tests. Each call makes a new one, since processes keep their state."""

from typing import Any

import msgspec

from strobe import Channel, Declares, Process, System, Waits


class Coin(msgspec.Struct, tag=True):
    amount: int


class Note(msgspec.Struct, tag=True):
    text: str


class Purse(msgspec.Struct):
    coins: int
    notes: int = 0


class Player(Process):
    """Sends several messages of two kinds in one event; sometimes requests a snapshot in the middle of a frame."""

    def __init__(self, coins: int = 60, snapshots: bool = False) -> None:
        self.purse = Purse(coins)
        self.snapshots = snapshots

    def start(self, ctx: Any) -> None:
        ctx.set_timer("play", ctx.random.uniform(0.001, 0.003))

    def timer(self, ctx: Any, name: str) -> None:
        for channel in ctx.outputs:
            for _ in range(ctx.random.randint(0, 3)):
                amount = min(self.purse.coins, ctx.random.randint(0, 5))
                self.purse.coins -= amount
                ctx.send(channel, Coin(amount))
            if ctx.random.random() < 0.2:
                ctx.send(channel, Note(f"at {ctx.now():.6f}"))
        ctx.set_timer("play", ctx.random.uniform(0.001, 0.003))

    def receive(self, ctx: Any, channel: str, message: Coin | Note) -> None:
        if isinstance(message, Coin):
            self.purse.coins += message.amount
        else:
            self.purse.notes += 1
        if self.snapshots and ctx.random.random() < 0.004:
            ctx.snapshot()

    def leave(self, ctx: Any) -> None:
        ctx.send(ctx.outputs[0], Coin(self.purse.coins))
        self.purse.coins = 0

    def capture(self) -> Purse:
        return self.purse

    def restore(self, state: Purse) -> None:
        self.purse = state


class BatchPlayer(Player):
    """The same with batches."""

    def timer(self, ctx: Any, name: str) -> None:
        for channel in ctx.outputs:
            amounts = [min(self.purse.coins // 4, ctx.random.randint(0, 5)) for _ in range(ctx.random.randint(0, 4))]
            self.purse.coins -= sum(amounts)
            ctx.send_many(channel, map(Coin, amounts))
        ctx.set_timer("play", ctx.random.uniform(0.001, 0.003))

    def receive_many(self, ctx: Any, channel: str, messages: list[Coin | Note]) -> None:
        assert messages
        for message in messages:
            super().receive(ctx, channel, message)


def coins(states: Any, messages: Any) -> int:
    return sum(purse.coins for purse in states.values()) + sum(m.amount for m in messages if isinstance(m, Coin))


SHAPES = {
    "pair": ("ab", ["ab", "ba"]),
    "ring": ("abcd", ["ab", "bc", "cd", "da"]),
    "complete": ("abcd", [p + q for p in "abcd" for q in "abcd" if p != q]),
    "dag": ("abcd", ["ab", "ac", "bd", "cd"]),
    "two components": ("abcd", ["ab", "ba", "cd", "dc"]),
    "self-loops": ("ab", ["aa", "ab", "bb", "ba"]),
    "sources and sinks": ("abcd", ["ac", "bc", "cd"]),
    "alone": ("a", []),
}


def players(
    shape: str, protocol: str, *, snapshots: bool = False, hashed_by: str = "xxh3", player: type[Player] = Player
) -> System:
    """Return a system of this shape. Under Lai-Yang every other channel is unordered. FIFO channels are `hashed_by`."""
    names, edges = SHAPES[shape]
    mixed = protocol == "lai-yang"
    channels = [
        Channel(source, target, "unordered", hash="xxh3") if mixed and number % 2 == 0 else Channel(source, target)
        for number, (source, target) in enumerate(edges)
    ]
    processes = {name: player(snapshots=snapshots) for name in names}
    return System(processes, channels, [Coin, Note], protocol, coins, hash=hashed_by)


def parallel_channels(protocol: str) -> System:
    """Return a pair of processes with two channels in each direction."""
    channels = [Channel(p, q, id=f"{p}->{q} {lane}") for p, q in ("ab", "ba") for lane in (1, 2)]
    return System({"a": Player(), "b": Player()}, channels, [Coin, Note], protocol, coins)


class PendingSnapshot(msgspec.Struct, tag=True):
    declares = Declares(requests=True)


class Key(msgspec.Struct, tag=True):
    declares = Declares(grants=True)


class Clerk(Process):
    """One of two processes that each have a key and sometimes need both; only b gives its own away while it waits."""

    class Desk(msgspec.Struct):
        keys: int = 1
        wanting: bool = False
        asked: bool = False
        meals: int = 0

    def __init__(self, other: str) -> None:
        self.other = other
        self.desk = self.Desk()

    def start(self, ctx: Any) -> None:
        ctx.set_timer("want", ctx.random.uniform(0.001, 0.004))

    def timer(self, ctx: Any, name: str) -> None:
        desk = self.desk
        desk.wanting, desk.meals = name == "want", desk.meals + (name == "done")
        if desk.wanting:
            ctx.send(f"{ctx.name}->{self.other}", PendingSnapshot())
        else:
            for _ in range(1 + desk.asked):
                self.give(ctx)
            desk.asked = False
            self.start(ctx)

    def receive(self, ctx: Any, channel: str, message: Any) -> None:
        desk = self.desk
        if isinstance(message, Key):
            desk.keys += 1
            if desk.wanting and desk.keys == 2:
                ctx.set_timer("done", 0.001)
        elif desk.keys == 2 or (desk.wanting and ctx.name == "a"):
            desk.asked = True
        elif desk.keys:
            self.give(ctx)
            if desk.wanting:
                ctx.send(f"{ctx.name}->{self.other}", PendingSnapshot())

    def give(self, ctx: Any) -> None:
        self.desk.keys -= 1
        ctx.send(f"{ctx.name}->{self.other}", Key())

    def waits_for(self) -> Waits | None:
        return Waits.all(self.other) if self.desk.wanting and self.desk.keys < 2 else None

    def capture(self) -> Any:
        return self.desk

    def restore(self, state: Any) -> None:
        self.desk = state


def clerks() -> System:
    return System({"a": Clerk("b"), "b": Clerk("a")}, [Channel("a", "b"), Channel("b", "a")], [PendingSnapshot, Key])


class Plea(msgspec.Struct, tag=True):
    declares = Declares(requests=True)
    meal: int


class Help(msgspec.Struct, tag=True):
    declares = Declares(grants=True)
    meal: int


class Friend(Process):
    """Sometimes needs the help of all of one of its `choices`. While it waits it helps no other, except if `kind`."""

    class Need(msgspec.Struct):
        waiting: bool = False
        helped: list[str] = []
        asked: list[tuple[str, int]] = []
        meals: int = 0

    def __init__(self, choices: tuple[str, ...], kind: bool) -> None:
        self.choices, self.kind = choices, kind
        self.need = self.Need()

    def start(self, ctx: Any) -> None:
        ctx.set_timer("need", ctx.random.uniform(0.001, 0.004))

    def timer(self, ctx: Any, name: str) -> None:
        self.need.waiting, self.need.helped = True, []
        for other in "".join(self.choices):
            ctx.send(f"{ctx.name}->{other}", Plea(self.need.meals))

    def receive(self, ctx: Any, channel: str, message: Any) -> None:
        other, need = channel[0], self.need
        if isinstance(message, Plea):
            need.asked.append((other, message.meal))
            if self.kind or not need.waiting:
                self.help(ctx)
        elif need.waiting and message.meal == need.meals:  # otherwise it is late: another one was quicker
            need.helped.append(other)
            if "" in self.missing():
                need.waiting, need.meals = False, need.meals + 1
                self.help(ctx)
                self.start(ctx)

    def help(self, ctx: Any) -> None:
        for other, meal in self.need.asked:
            ctx.send(f"{ctx.name}->{other}", Help(meal))
        self.need.asked = []

    def missing(self) -> list[str]:
        return ["".join(sorted(set(choice) - set(self.need.helped))) for choice in self.choices]

    def waits_for(self) -> Waits | None:
        if not self.need.waiting:
            return None
        return Waits.any(*(choice if len(choice) == 1 else Waits.all(*choice) for choice in self.missing()))

    def capture(self) -> Any:
        return self.need

    def restore(self, state: Any) -> None:
        self.need = state


ANY_OF_TWO = {"a": ("b", "c"), "b": ("c", "d"), "c": ("d", "a"), "d": ("a", "b")}
ONE_OR_TWO = {"a": ("b", "cd"), "b": ("c", "da"), "c": ("d", "ab"), "d": ("a", "bc")}


def friends(choices: dict[str, tuple[str, ...]], kind: str = "") -> System:
    """Return four processes that need each other. They end in a knot; with a `kind` one they only come close."""
    processes = {name: Friend(of, name == kind) for name, of in choices.items()}
    return System(processes, [Channel(p, q) for p in "abcd" for q in "abcd" if p != q], [Plea, Help])
