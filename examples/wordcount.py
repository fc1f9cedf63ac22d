"""Counts the words of an endless text: a reader, two line splitters, two counters, and a process that sums up."""

import msgspec

from strobe import Channel, Process, System

TEXT = ("a snapshot of a river", "is neither the river nor a snapshot", "of the water but of all that flows")


class Line(msgspec.Struct, tag=True):
    text: str


class Word(msgspec.Struct, tag=True):
    word: str


class Count(Word, tag=True):
    count: int


class Table(msgspec.Struct):
    read: int = 0
    counts: dict[str, int] = {}


class Operator(Process):
    def __init__(self):
        self.table = Table()

    def capture(self):
        return self.table

    def restore(self, state):
        self.table = state


class Reader(Operator):
    def start(self, ctx):
        ctx.set_timer("read", 0.01)

    def timer(self, ctx, name):
        line = ctx.random.choice(TEXT)
        self.table.read += len(line.split())
        ctx.send(ctx.random.choice(ctx.outputs), Line(line))
        self.start(ctx)


class Splitter(Operator):
    def receive(self, ctx, channel, line):
        for word in line.text.split():
            ctx.send(ctx.outputs[ord(word[0]) % len(ctx.outputs)], Word(word))


class Counter(Operator):
    def receive(self, ctx, channel, message):
        word, more = message.word, getattr(message, "count", 1)
        self.table.counts[word] = self.table.counts.get(word, 0) + more
        for output in ctx.outputs:
            ctx.send(output, Count(word, more))


def in_between(tables, messages):
    """Return what was read or counted but is in no state and no message: nothing, in every snapshot."""
    words = sum(len(m.text.split()) if type(m) is Line else type(m) is Word for m in messages)
    counts = sum(m.count for m in messages if type(m) is Count)
    first, second, summed = (sum(tables[name].counts.values()) for name in ("count-1", "count-2", "sum"))
    return tables["read"].read - words - first - second, first + second - counts - summed


def dataflow(protocol):
    processes = {"read": Reader(), "split-1": Splitter(), "split-2": Splitter(), "sum": Counter()}
    processes |= {"count-1": Counter(), "count-2": Counter()}
    channels = [Channel("read", f"split-{i}") for i in (1, 2)] + [Channel(f"count-{i}", "sum") for i in (1, 2)]
    channels += [Channel(f"split-{i}", f"count-{j}") for i in (1, 2) for j in (1, 2)]
    return System(processes, channels, [Line, Word, Count], protocol, in_between)


wordcount, wordcount_unaligned, wordcount_timed = map(dataflow, ("aligned", "unaligned", "aligned-then-unaligned"))
