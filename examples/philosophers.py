"""Five philosophers, a fork between each two; a hungry one requests both. `greedy` ones keep their forks, and end in a
deadlock. `polite` ones (Chandy and Misra, 1984) hand over used forks: they come close to a deadlock, but avoid it."""

import msgspec

from strobe import Channel, Declares, Process, System, Waits


class Ask(msgspec.Struct, tag=True):
    declares = Declares(requests=True)


class Fork(msgspec.Struct, tag=True):
    declares = Declares(grants=True)


class Seat(msgspec.Struct):
    used: dict[str, bool]  # whether each fork held here was used, by neighbour
    asked: list[str] = []
    hungry: bool = False
    meals: int = 0


class Philosopher(Process):
    def __init__(self, neighbours, forks, meals_polite):
        self.neighbours, self.meals_polite, self.seat = neighbours, meals_polite, Seat(dict.fromkeys(forks, True))

    def start(self, ctx):
        if not self.seat.hungry and self.seat.meals != self.meals_polite:  # all get hungry at about the same time
            ctx.set_timer("hungry", 0.01 - ctx.now() % 0.01 + ctx.random.uniform(0, 0.0003))
        elif self.seat.hungry and not self.missing():
            ctx.set_timer("sated", ctx.random.uniform(0.001, 0.003))

    def timer(self, ctx, name):
        seat = self.seat
        seat.hungry, back = name == "hungry", () if self.meals_polite else self.neighbours[:1]
        others = self.missing() if seat.hungry else dict.fromkeys([*seat.asked, *back])
        for other in others:  # greedy ones put the fork on their left back
            ctx.send(f"{ctx.name}->{other}", Ask() if seat.hungry else Fork())
        if not seat.hungry:
            seat.used, seat.asked = {other: True for other in seat.used if other not in others}, []
            seat.meals += 1
        self.start(ctx)

    def receive(self, ctx, channel, message):
        other, seat = channel.partition("->")[0], self.seat
        if isinstance(message, Fork):
            seat.used[other] = False
            self.start(ctx)
        elif seat.hungry and not (self.meals_polite and self.missing() and seat.used[other]):
            seat.asked.append(other)
        elif seat.used.pop(other, None) is not None:  # else the fork is already in flight
            for answer in [Fork(), Ask()][: 1 + seat.hungry]:
                ctx.send(f"{ctx.name}->{other}", answer)

    def missing(self):
        return [other for other in self.neighbours if other not in self.seat.used]

    def waits_for(self):
        return Waits.all(*self.missing()) if self.seat.hungry and self.missing() else None

    def active(self):
        return self.seat.hungry

    def capture(self):
        return self.seat

    def restore(self, state):
        self.seat = state


def table(meals_polite):
    sides = {f"p{number}": (f"p{(number - 1) % 5}", f"p{(number + 1) % 5}") for number in range(5)}
    forks = {name: sides[name][1:] for name in sides} | ({"p0": sides["p0"], "p4": ()} if meals_polite else {})
    processes = {name: Philosopher(sides[name], forks[name], meals_polite) for name in sides}
    return System(processes, [Channel(name, other) for name in sides for other in sides[name]], [Ask, Fork])


greedy, polite = table(None), table(5)
