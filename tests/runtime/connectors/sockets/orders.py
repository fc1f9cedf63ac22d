"""Orders that tests read."""

import msgspec


class Order(msgspec.Struct):
    number: int


def read_all(source, records_max=100):
    records = []
    while found := source.poll(records_max):
        records += found
    return records
