"""Orders that tests read, and functions that read from sources and emit into sinks."""

import msgspec

from strobe.runtime import FileSink


class Order(msgspec.Struct):
    number: int


def read_all(source, records_max=100):
    records = []
    while found := source.poll(records_max):
        records += found
    return records


def emit(sink, *records):
    for record in records:
        sink.emit(record)
    return sink.position


def restored(path, position, **how):
    sink = FileSink(path, "a")
    sink.restore(position, **({"epoch": 2, "origin": 1} | how))
    return sink
