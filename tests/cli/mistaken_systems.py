"""Generates random systems as files: correct ones, and the same with one mistake of a user's."""

from collections.abc import Callable
from random import Random
from typing import NamedTuple

PLACE = "# HERE"
"""Marks the line that an error must name."""

HEAD = """import msgspec
from strobe import Channel, KeyedState, Process, System

class Amount(msgspec.Struct, tag=True):
    amount: int

class Note(msgspec.Struct, tag=True):
    text: str = ""

class Undeclared(msgspec.Struct, tag=True):
    pass

class Upgraded(msgspec.Struct):
    migrations = {2: lambda state: state}

class Ledger(msgspec.Struct):
    balance: int = 0
    seen: int = 0
    names: list[str] = []

def forgets(snapshot):
    pass
"""
HANDLERS = {
    "start": ["def start(self, ctx):", "    ctx.set_timer('tick', 0.01)"],
    "timer": [
        "def timer(self, ctx, name):",
        "    self.spend(1)",
        "    for channel in ctx.outputs:",
        "        ctx.send(channel, Amount(1) if ctx.random.random() < 0.8 else Note('n'))",
        "    ctx.set_timer('tick', 0.01)",
    ],
    "receive": [
        "def receive(self, ctx, channel, message):",
        "    self.spend(-message.amount if isinstance(message, Amount) else 0)",
    ],
}
STRUCT = HANDLERS | {
    "__init__": ["def __init__(self):", "    self.state = Ledger(BALANCE)"],
    "spend": ["def spend(self, amount):", "    self.state.balance -= amount", "    self.state.seen += 1"],
    "capture": ["def capture(self):", "    return self.state"],
    "restore": ["def restore(self, state):", "    self.state = state"],
}
PLAIN = HANDLERS | {
    "__init__": ["def __init__(self):", "    self.balance = BALANCE", "    self.seen = 0"],
    "spend": ["def spend(self, amount):", "    self.balance -= amount", "    self.seen += 1"],
    "capture": ["def capture(self):", "    return {'balance': self.balance, 'seen': self.seen}"],
    "restore": [
        "def restore(self, state):",
        "    self.balance = state['balance']",
        "    self.seen = state['seen']",
    ],
}
KEYED = HANDLERS | {
    "__init__": [
        "def __init__(self):",
        "    self.state = KeyedState(int)",
        "    self.state['balance'] = BALANCE",
        "    self.state['seen'] = 0",
    ],
    "spend": [
        "def spend(self, amount):",
        "    self.state['balance'] = self.state['balance'] - amount",
        "    self.state['seen'] = self.state['seen'] + 1",
    ],
    "capture": ["def capture(self):", "    return self.state"],
    "restore": ["def restore(self, state):", "    self.state = state"],
}
KINDS = {"Struct": STRUCT, "Plain": PLAIN, "Keyed": KEYED}

Methods = dict[str, list[str]]


class Mistake(NamedTuple):
    """`change` puts the mistake into the methods of a process; `message` is a regular expression for the error.

    `code` is the exit code. A `late` mistake shows only when the process runs, so `strobe up` does not refuse it.
    """

    code: int
    message: str
    change: Callable[[Methods, str], None] = lambda methods, kind: None
    options: str = ""
    late: bool = False
    kinds: tuple[str, ...] = tuple(KINDS)


def replaced(method: str, *lines: str) -> Callable[[Methods, str], None]:
    def change(methods: Methods, kind: str) -> None:
        methods[method] = list(lines)

    return change


def forgetting(methods: Methods, kind: str) -> None:
    methods["restore"] = {
        "Struct": ["def restore(self, state):  # HERE", "    self.state.balance = state.balance"],
        "Plain": ["def restore(self, state):  # HERE", "    self.balance = state['balance']"],
        "Keyed": ["def restore(self, state):  # HERE", "    self.state['balance'] = state['balance']"],
    }[kind]


def on_the_class(methods: Methods, kind: str) -> None:
    made = {"Struct": ["state = Ledger(BALANCE)"], "Keyed": [line[9:] for line in KEYED["__init__"][1:]]}
    methods["__init__"] = made[kind]
    methods["spend"][1] += "  # HERE"


MISTAKES: dict[str, Mistake] = {
    "async receive": Mistake(
        2,
        r"KIND\.receive is async \(PLACE\)",
        replaced("receive", "async def receive(self, ctx, channel, message):  # HERE", "    pass"),
    ),
    "async timer": Mistake(
        2, r"KIND\.timer is async \(PLACE\)", replaced("timer", "async def timer(self, ctx, name):  # HERE", "    pass")
    ),
    "generator": Mistake(
        2,
        r"KIND\.receive has a yield in it \(PLACE\)",
        replaced("receive", "def receive(self, ctx, channel, message):  # HERE", "    yield message"),
    ),
    "async capture": Mistake(
        2, r"KIND\.capture is async \(PLACE\)", replaced("capture", "async def capture(self):  # HERE", "    return 1")
    ),
    "too few parameters": Mistake(
        2,
        r"KIND\.receive takes \(ctx, message\) \(PLACE\).*write def receive\(self, ctx, channel, message\)",
        replaced("receive", "def receive(self, ctx, message):  # HERE", "    pass"),
    ),
    "too many parameters": Mistake(
        2,
        r"KIND\.timer takes \(ctx, name, more\) \(PLACE\)",
        replaced("timer", "def timer(self, ctx, name, more):  # HERE", "    pass"),
    ),
    "a coroutine at the call": Mistake(
        1,
        r"KIND\.receive.*coroutine",
        replaced(
            "receive",
            "async def later(self, message): pass",
            "receive = lambda self, ctx, channel, message: self.later(message)  # HERE",
        ),
        late=True,
    ),
    "no restore": Mistake(
        1, r"KIND has capture\(\) but no restore\(\).*mine\.py:\d+", lambda methods, kind: methods.pop("restore", None)
    ),
    "restore raises": Mistake(
        1,
        r"KIND\.restore.*AttributeError.*'nothing'.*PLACE",
        replaced("restore", "def restore(self, state):", "    state.nothing()  # HERE"),
    ),
    "restore forgets a field": Mistake(1, r"KIND\.restore \(PLACE\).*seen", forgetting, late=True),
    "restore of another key": Mistake(
        1,
        r"KIND\.restore.*KeyError: 'sum'.*PLACE",
        replaced("restore", "def restore(self, state):", "    self.balance = state['sum']  # HERE"),
        kinds=("Plain",),
    ),
    "capture without return": Mistake(
        1,
        r"KIND\.capture \(PLACE\).* returned None; return its state",
        replaced("capture", "def capture(self):  # HERE", "    self.seen_now = 1"),
    ),
    "state of the class": Mistake(
        1,
        r"KIND\.state is an attribute of the class, and is changed at PLACE: .*; set self\.state in __init__",
        on_the_class,
        kinds=("Struct", "Keyed"),
    ),
    "migrations with a gap": Mistake(
        1,
        r"KIND\.capture \(PLACE\): Upgraded\.migrations has the keys 2; number the versions from 1 without gaps",
        replaced("capture", "def capture(self):  # HERE", "    return Upgraded()"),
    ),
    "capture of an object": Mistake(
        1,
        r"KIND\.capture \(PLACE\).* cannot be encoded: Ledger\.names\[0\]: object",
        replaced("capture", "def capture(self):  # HERE", "    return Ledger(1, 2, [object()])"),
        kinds=("Struct",),
    ),
    "capture of another type": Mistake(
        1,
        r"KIND\.capture \(PLACE\).*Expected `int`, got `str` - at `\$\.balance`",
        replaced("capture", "def capture(self):  # HERE", "    return Ledger('1')"),
        kinds=("Struct",),
    ),
    "capture that counts": Mistake(
        1,
        r"KIND\.capture \(PLACE\): capture\(\), called twice, gives different states: balance",
        replaced(
            "capture",
            "def capture(self):  # HERE",
            "    self.state.balance += 1",
            "    return Ledger(self.state.balance)",
        ),
        kinds=("Struct",),
    ),
    "a handler raises": Mistake(
        1,
        r"ZeroDivisionError.*PLACE",
        replaced("timer", "def timer(self, ctx, name):", "    1 / 0  # HERE"),
        late=True,
    ),
    "a channel that does not exist": Mistake(
        1,
        r"sends on 'nowhere', which is not an output of it; outputs: .*PLACE",
        replaced("timer", "def timer(self, ctx, name):", "    ctx.send('nowhere', Amount(1))  # HERE"),
        late=True,
    ),
    "a message that cannot be encoded": Mistake(
        1,
        r"Amount\.amount: object.*PLACE",
        replaced("timer", "def timer(self, ctx, name):", "    ctx.send(ctx.outputs[0], Amount(object()))  # HERE"),
        late=True,
    ),
    "a message that is not declared": Mistake(
        1,
        r"sends a message of type Undeclared on .*, which is not one of the system's message types: .*PLACE",
        replaced("timer", "def timer(self, ctx, name):", "    ctx.send(ctx.outputs[0], Undeclared())  # HERE"),
        late=True,
    ),
    "conserved without return": Mistake(
        1,
        r"`conserved` of the system \(mine\.py:\d+\): `conserved` returned None",
        options="conserved=lambda states, messages: None",
    ),
    "conserved raises": Mistake(
        1,
        r"`conserved` of the system \(mine\.py:\d+\): ZeroDivisionError",
        options="conserved=lambda states, messages: 1 / 0",
    ),
    "an invariant without return": Mistake(
        1,
        r"the invariant forgets \(mine\.py:\d+\) returned None; return True if it holds",
        options="invariants=[forgets]",
    ),
    "a condition on an unknown process": Mistake(
        2, r"column 1: in `invariants`: the system has no process 'nobody'", options="invariants=['nobody.x > 0']"
    ),
    "conserved of one parameter": Mistake(
        2, r"`conserved` .*takes \(states\) \(mine\.py:\d+\)", options="conserved=lambda states: 1"
    ),
}


def topology(names: list[str], chance: Random) -> list[str]:
    """Return channels that reach every process: a ring, and a few random ones."""
    pairs = {(name, names[(place + 1) % len(names)]) for place, name in enumerate(names)}
    for _ in range(chance.randrange(4)):
        source, target = chance.choice(names), chance.choice(names)
        pairs.add((source, target))
    return [f"Channel({source!r}, {target!r})" for source, target in sorted(pairs)]


def class_of(name: str, methods: Methods, balance: int) -> list[str]:
    lines = [f"class {name}(Process):"]
    for method in methods.values():
        lines += [f"    {line}".replace("BALANCE", str(balance)) for line in method]
    return [*lines, ""]


class Made(NamedTuple):
    """The text of a system's file, and the class that has the mistake."""

    text: str
    kind: str

    @property
    def place(self) -> str:
        """The file and line of the mistake."""
        for number, line in enumerate(self.text.splitlines(), 1):
            if PLACE in line:
                return f"mine.py:{number}"
        return "mine.py"


def make(seed: int, mistake: Mistake | None = None) -> Made:
    """Return the system of `seed`, with `mistake` in one of its processes."""
    chance = Random(seed)
    names = [f"p{number}" for number in range(chance.randrange(2, 6))]
    mistaken = chance.choice(names)
    lines, entries, mistaken_class = [HEAD], [], ""
    for number, name in enumerate(names):
        kind = chance.choice(list(KINDS))
        if name == mistaken and mistake is not None:
            kind = chance.choice(mistake.kinds)
        methods = {key: list(value) for key, value in KINDS[kind].items()}
        class_name = f"{kind}{number}"
        if name == mistaken:
            mistaken_class = class_name
            if mistake is not None:
                mistake.change(methods, kind)
        lines += class_of(class_name, methods, chance.randrange(50))
        entries.append(f"{name!r}: {class_name}()")
    options = f", {mistake.options}" if mistake is not None and mistake.options else ""
    system = (
        f"System({{{', '.join(entries)}}}, [{', '.join(topology(names, chance))}], messages=[Amount, Note]{options})"
    )
    return Made("\n".join([*lines, f"mine = {system}", ""]), mistaken_class)
