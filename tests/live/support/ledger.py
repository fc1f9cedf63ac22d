"""Processes for tests of exactly-once (R1): every message has a unique id, and receivers remember those applied.

Each message on a channel has the next id of its channel, and the run of its sender, since a process that joins again
begins a new run. A process keeps the number of messages sent on each channel, and the multiset of ids applied. This
multiset is a `Tally`: it stays small however long the system runs, and loses nothing. For every channel of a snapshot,
the ids applied or in flight must be exactly the ids sent. Every applied message is also emitted as a line, and the
state has a hash of all these lines in order, so it determines the content of the released file.
"""

import os
from collections import Counter
from hashlib import blake2b
from pathlib import Path

import msgspec

from strobe import Channel, KeyedState, Process, System
from strobe.runtime import FileSink
from strobe.storage.content.state_codec import decode_state

NAMES = ("a", "b", "c")
DIAMOND = ("a", "b", "c", "d")
LEAVERS = ("a", "v", "w", "x", "y", "z")
BUCKETS = 64


class Note(msgspec.Struct, tag=True):
    """A message: its id on its channel, the run of its sender, and a payload."""

    id: int
    run: int
    load: bytes = b""


class Tally(msgspec.Struct):
    """A multiset of ids: those above `before` up to `upto`, each once, and the `others` with their counts."""

    before: int
    upto: int
    others: dict[int, int] = {}

    def add(self, number):
        if number == self.upto + 1 and number not in self.others:
            self.upto = number
        else:
            self.others[number] = self.others.get(number, 0) + 1


class Book(msgspec.Struct):
    """The state of a clerk. `applied` is by channel and run."""

    run: int = 0
    sent: dict[str, int] = {}
    applied: dict[str, Tally] = {}
    emitted: int = 0
    digest: bytes = b""


class Clerk(Process):
    """Sends bursts of notes to all other processes, and applies the notes it receives; with a sink, it emits them."""

    has_sink = False

    def __init__(self, burst=8, every_s=0.005, load=64):
        self.burst = burst
        self.every_s = every_s
        self.load = bytes(load)
        self.book = Book()

    def start(self, ctx):
        self.book.run = int(ctx.now() * 1e6)
        ctx.set_timer("send", self.every_s)

    def timer(self, ctx, name):
        for _ in range(self.burst if ctx.outputs else 0):
            channel = ctx.random.choice(ctx.outputs)
            number = self.book.sent.get(channel, 0) + 1
            self.book.sent[channel] = number
            ctx.send(channel, Note(number, self.book.run, self.load))
        ctx.set_timer("send", self.every_s)

    def receive(self, ctx, channel, note):
        key = f"{channel} {note.run}"
        if key not in self.book.applied:
            self.book.applied[key] = Tally(note.id - 1, note.id - 1)
        self.book.applied[key].add(note.id)
        record = {"channel": channel, "id": note.id}
        self.book.emitted += 1
        self.book.digest = chained(self.book.digest, msgspec.json.encode(record) + b"\n")
        if self.has_sink:
            ctx.emit(record)

    def capture(self):
        return self.book

    def restore(self, state):
        self.book = state


class KeyedClerk(Clerk):
    """The same with a keyed state, of a bounded number of keys.

    For each channel and run, ids are divided into buckets. A bucket keeps its first and last id; an id that does not
    follow the last is recorded separately. The newest ids are also kept one by one, so that there are deletions.
    `ballast` entries never change: with enough of them, only a small part of the state changes.
    """

    def __init__(self, burst=8, every_s=0.005, load=64, ballast=0):
        super().__init__(burst, every_s, load)
        self.ballast = ballast
        self.keyed = KeyedState(int)

    def start(self, ctx):
        self.keyed["run"] = int(ctx.now() * 1e6)
        for number in range(self.ballast):
            self.keyed[f"ballast {number}"] = ctx.random.getrandbits(62)
        ctx.set_timer("send", self.every_s)

    def timer(self, ctx, name):
        for _ in range(self.burst if ctx.outputs else 0):
            channel = ctx.random.choice(ctx.outputs)
            number = self.keyed.get(f"sent {channel}", 0) + 1
            self.keyed[f"sent {channel}"] = number
            ctx.send(channel, Note(number, self.keyed["run"], self.load))
        ctx.set_timer("send", self.every_s)

    def receive(self, ctx, channel, note):
        keyed, bucket = self.keyed, note.id % BUCKETS
        place = f"{channel} {note.run}"
        last = keyed.get(f"last {place} {bucket}")
        if last is None:
            keyed[f"first {place} {bucket}"] = note.id
        elif note.id != last + BUCKETS:
            keyed[f"wrong {place} {note.id}"] = keyed.get(f"wrong {place} {note.id}", 0) + 1
            return
        keyed[f"last {place} {bucket}"] = note.id
        keyed[f"newest {place} {note.id}"] = 1
        keyed.pop(f"newest {place} {note.id - BUCKETS}", None)

    def capture(self):
        return self.keyed

    def restore(self, state):
        self.keyed = state


class Hoard(Book):
    """A book with a large field."""

    weight: bytes = b""


class Hoarder(Clerk):
    """Has a state of two megabytes, different each time."""

    def capture(self):
        weight = blake2b(str(self.book.sent).encode()).digest() * 32768
        return Hoard(*(getattr(self.book, field) for field in Book.__struct_fields__), weight=weight)


class Poisoned(Clerk):
    """Fails after a while, and again right after every restore."""

    retry = 100

    def timer(self, ctx, name):
        super().timer(ctx, name)
        self.retry -= 1
        if not self.retry:
            raise RuntimeError("there is poison in the state")

    def restore(self, state):
        super().restore(state)
        self.retry = 1


class Unready(Clerk):
    """Cannot start before a file exists, whose directory the environment names."""

    def start(self, ctx):
        if not output(f"{ctx.name}-ready").exists():
            raise RuntimeError("it is not ready")
        super().start(ctx)


class OtherBook(msgspec.Struct):
    """Another version of the state; an old state cannot be decoded as it."""

    pages: list[str]


class OtherClerk(Clerk):
    def capture(self):
        return OtherBook([])


class OtherNote(msgspec.Struct, tag="Note"):
    """Another version of the message; an old message cannot be decoded as it."""

    pages: list[str]


class StubbornClerk(Clerk):
    """Restores only its initial state, which is tried before the system runs."""

    def restore(self, state):
        if state != Book():
            raise KeyError("pages")
        super().restore(state)


class Beating(Clerk):
    """Writes the number of its timer events to a file, so that tests see that it runs without asking the system."""

    beats = 0

    def timer(self, ctx, name):
        super().timer(ctx, name)
        self.beats += 1
        path = Path(os.environ["STROBE_TEST_PULSE"]) / ctx.name
        path.with_suffix(".new").write_text(self.pulse())
        path.with_suffix(".new").rename(path)

    def pulse(self):
        return str(self.beats)


class Counting(Beating):
    """Writes with each beat how many notes it has applied and sent."""

    def pulse(self):
        return f"{self.book.emitted} {sum(self.book.sent.values())}"


class Runaway(Clerk):
    """Sends in an endless loop when it receives its first note."""

    def receive(self, ctx, channel, note):
        while True:
            ctx.send(ctx.outputs[0], note)


class Doubling(Clerk):
    """Sends two notes for each one it receives."""

    def timer(self, ctx, name):
        super().timer(ctx, name)
        ctx.cancel_timer("send")

    def receive(self, ctx, channel, note):
        for _ in range(2):
            self.timer(ctx, "send")


def chained(digest, line):
    """Return the hash of all lines up to `line`, where `digest` is the hash of those before."""
    return blake2b(digest + line, digest_size=16).digest()


def wired(clerks, protocol="chandy-lamport", kind="fifo", sinks=None, conserved=None):
    channels = [Channel(p, q, kind=kind) for p in clerks for q in clerks if p != q]
    return with_output(System(clerks, channels, [Note], protocol, conserved, sinks=sinks))


def doubled(states, notes):
    """Return how many notes were applied twice: always 0, despite joins, leaves and rollbacks."""
    books = [state for state in states.values() if isinstance(state, Book)]
    tallies = [count for book in books for tally in book.applied.values() for count in tally.others.values()]
    keyed = [state for state in states.values() if isinstance(state, KeyedState)]
    tallies += [count for state in keyed for key, count in state.items() if key.startswith("wrong ")]
    return sum(count > 1 for count in tallies)


def with_output(system):
    """Let all processes with a sink emit."""
    for sink in system.sinks.values():
        system.processes[sink.process].has_sink = True
    return system


def output(name):
    """Return the output file of process `name`; the environment of a test sets the directory."""
    return Path(os.environ.get("STROBE_TEST_OUTPUT", "output")) / f"{name}.jsonl"


def sinks_of(*names):
    return {f"out-{name}": FileSink(output(name), process=name) for name in names}


class Initiating(Clerk):
    """Requests snapshots itself, while it handles a message."""

    def receive(self, ctx, channel, note):
        super().receive(ctx, channel, note)
        if self.book.emitted % 200 == 0:
            ctx.snapshot()


class BatchClerk(Clerk):
    """Sends and applies the notes of a channel in batches."""

    def timer(self, ctx, name):
        for channel in ctx.outputs:
            before = self.book.sent.get(channel, 0)
            self.book.sent[channel] = before + self.burst
            numbers = range(before + 1, before + self.burst + 1)
            ctx.send_many(channel, [Note(number, self.book.run, self.load) for number in numbers])
        ctx.set_timer("send", self.every_s)

    def receive_many(self, ctx, channel, notes):
        for note in notes:
            self.receive(ctx, channel, note)


ledger = wired({name: Clerk() for name in NAMES})
batches = wired({"a": BatchClerk(), "b": BatchClerk(), "c": Clerk()})
initiating = wired({"a": Clerk(), "b": Initiating(), "c": Initiating()})
ledger_unordered = wired({name: Clerk() for name in NAMES}, protocol="lai-yang", kind="unordered")
keyed = wired({name: KeyedClerk() for name in NAMES})
# In any interval between snapshots, a delta is less than a tenth of the state.
mostly_constant = wired({name: KeyedClerk(ballast=10_000) for name in NAMES})
with_sinks = wired({name: Clerk() for name in NAMES}, sinks=sinks_of(*NAMES))
with_sinks_unordered = wired(
    {name: Clerk() for name in NAMES}, protocol="lai-yang", kind="unordered", sinks=sinks_of(*NAMES)
)
# All processes but the first leave, one after the other.
leavers = wired({name: Clerk(burst=2, every_s=0.02) for name in LEAVERS}, sinks=sinks_of(*LEAVERS[1:]))
# One more process, which joins `ledger`.
ledger_and_d = wired({name: Clerk() for name in (*NAMES, "d")})
# A later version of `ledger`.
ledger_without_c = wired({name: Clerk() for name in ("a", "b")})
poisoned = wired({"a": Clerk(), "b": Poisoned(), "c": Clerk()})
unready = wired({"a": Clerk(), "b": Unready(), "c": Clerk()})
# One process floods the other.
flooded = wired({"a": Clerk(burst=1), "b": Clerk(burst=32, load=4000)})
flooded_and_counted = wired({"a": Counting(burst=1), "b": Counting(burst=32, load=4000)})
# Later versions of `flooded`.
other_schema = wired({"a": Clerk(), "b": OtherClerk()})
other_messages = System(flooded.processes, flooded.channels, [OtherNote])
stubborn = wired({"a": Clerk(), "b": StubbornClerk()})
runaway = wired({"a": Clerk(), "b": Runaway()})
doubling = wired({name: Doubling(burst=1, load=1000) for name in ("a", "b")})
beating = wired({name: Beating(every_s=0.01) for name in NAMES})
# Large states.
hoarders = wired({"a": Hoarder(), "b": Hoarder()})
# All kinds of state and output in one system.
mixed = wired(
    {"a": Clerk(), "b": KeyedClerk(), "c": Clerk(), "d": KeyedClerk(burst=4, load=2000)},
    sinks=sinks_of("a", "c"),
    conserved=doubled,
)
mixed_unordered = wired(
    {"a": Clerk(), "b": KeyedClerk(), "c": Clerk(), "d": KeyedClerk(burst=4, load=2000)},
    protocol="lai-yang",
    kind="unordered",
    sinks=sinks_of("a", "c"),
    conserved=doubled,
)


def diamond(protocol, sinks=None):
    """Return a dataflow of clerks, one of which joins two inputs."""
    channels = [Channel(*pair) for pair in ("ab", "ac", "bd", "cd")]
    return with_output(System({name: Clerk() for name in DIAMOND}, channels, [Note], protocol, sinks=sinks))


BARRIERS = ("aligned", "unaligned", "aligned-then-unaligned")
diamond_aligned, diamond_unaligned, diamond_timed = map(diamond, BARRIERS)
with_sinks_aligned, with_sinks_overtaking, with_sinks_timed = (
    diamond(protocol, sinks_of("c", "d")) for protocol in BARRIERS
)


def read_state(state):
    """Return the run, the numbers sent by channel, and the tallies by channel and run, of a clerk's captured state."""
    if isinstance(state, KeyedState):
        return _read_keyed(state)
    return state.run, state.sent, state.applied


def _read_keyed(state):
    sent, found = {}, {}
    for key, value in state.items():
        what, *place = key.split(" ")
        if what == "sent":
            sent[place[0]] = value
        elif what not in ("run", "ballast"):
            parts = found.setdefault(f"{place[0]} {place[1]}", {"first": [], "last": [], "newest": [], "wrong": {}})
            if what == "wrong":
                parts["wrong"][int(place[2])] = value
            else:
                parts[what].append(int(place[2]) if what == "newest" else value)
    return state.get("run", 0), sent, {place: _tally_of(parts) for place, parts in found.items()}


def _tally_of(parts):
    """Return the tally of buckets, newest ids and wrong ids; the newest ids must be the last ones of the buckets."""
    first, last = sorted(parts["first"]), sorted(parts["last"])
    consecutive = all(ids == list(range(ids[0], ids[0] + len(ids))) for ids in (first, last))
    assert sorted(parts["newest"]) == last, "what was deleted is back, or what is new is missing"
    if consecutive:
        return Tally(first[0] - 1, last[-1], parts["wrong"])
    others = Counter(parts["wrong"])
    for begin, end in zip(
        sorted(parts["first"], key=lambda number: number % BUCKETS),
        sorted(parts["last"], key=lambda number: number % BUCKETS),
        strict=True,
    ):
        others.update(range(begin, end + 1, BUCKETS))
    return Tally(0, 0, dict(others))


def assert_exactly_once(system, snapshot):
    """Assert that every id sent was applied or is in flight, exactly once, and no other; return the number of ids sent.

    A channel that was opened again, because one of its ends left and joined, begins with the next id at that time.
    """
    books = {
        name: read_state(decode_state(system.processes[name], fragment.state))
        for name, fragment in snapshot.fragments.items()
    }
    for spec in snapshot.view.channels:
        run, sent, _ = books[spec.source]
        number, count = sent.get(spec.id, 0), snapshot.fragments[spec.source].sent[spec.id].count
        found = _found(system, snapshot, books, spec, run)
        expected = Tally(number - count, number)
        assert spec.incarnation > 1 or number == count, f"{snapshot.id}, {spec.id}: state {number}, channel {count}"
        assert found == expected or (count == 0 and found is None), (
            f"{snapshot.id}, channel {spec.id}: {expected} were sent, {found} applied or in flight"
        )
    for _, _, applied in books.values():
        broken = {place: tally for place, tally in applied.items() if tally.others}
        assert not broken, f"{snapshot.id}: lost, twice or out of order: {broken}"
    return sum(sum(sent.values()) for _, sent, _ in books.values())


def _found(system, snapshot, books, spec, run):
    """Return the multiset of ids of a channel that its target has applied, or will apply."""
    place = f"{spec.id} {run}"
    found = books[spec.target][2].get(place)
    found = msgspec.structs.replace(found, others=dict(found.others)) if found is not None else None
    for item in snapshot.fragments[spec.target].in_flight[spec.id]:
        for note in system.decoder.decode(item.frame.body)[item.consumed :]:
            assert note.run == run, f"{snapshot.id}, {spec.id}: a note of run {note.run} is in flight, not of {run}"
            found = found or Tally(note.id - 1, note.id - 1)
            found.add(note.id)
    return found


def covered_by(system, snapshot):
    """Return, by process with a sink, the end of the output that `snapshot` covers, and what it is by the state."""
    covered = {}
    for sink in system.sinks.values():
        if sink.process in snapshot.fragments:
            local = snapshot.fragments[sink.process].state
            book = decode_state(system.processes[sink.process], local)
            covered[sink.process] = (local.sinks[f"out-{sink.process}"], str(snapshot.id), book.emitted, book.digest)
    return covered


def check_released(system, covers, directory):
    """Check that each released file is, byte for byte, what the states determine; return the number of lines.

    `covers` has the result of `covered_by` for every snapshot of the run.
    """
    lines = 0
    for sink in system.sinks.values():
        covered = {cover[sink.process][0]: cover[sink.process][1:] for cover in covers if sink.process in cover}
        lines += _check_file(directory / sink.path.name, covered)
    return lines


def _check_file(path, covered):
    released = path.read_bytes() if path.exists() else b""
    assert not released or len(released) in covered, f"{path}: {len(released)} bytes are what no snapshot covers"
    count, position, digest = 0, 0, b""
    for line in released.splitlines(keepends=True):
        count, position, digest = count + 1, position + len(line), chained(digest, line)
        if position in covered:
            snapshot, emitted, expected = covered[position]
            assert (count, digest) == (emitted, expected), (
                f"{path} is not what snapshot {snapshot} says up to {position}"
            )
    return count


def sent_by(system, snapshot, name):
    """Return how many notes process `name` had sent, by channel."""
    return read_state(decode_state(system.processes[name], snapshot.fragments[name].state))[1]


def read_sent(system, snapshot, name):
    """Return how many notes process `name` had sent."""
    return sum(sent_by(system, snapshot, name).values())


def applied_count(system, snapshot, name):
    """Return how many notes process `name` had applied."""
    return decode_state(system.processes[name], snapshot.fragments[name].state).emitted
