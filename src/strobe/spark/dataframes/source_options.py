"""The options of `format("strobe")`, checked before anything is read."""

import os
from collections.abc import Mapping

import msgspec

from strobe.errors import UsageError
from strobe.protocol.values.ids import short_name
from strobe.spark.dataframes.reader import VERIFY_READ, VERIFY_SNAPSHOT, TableRequest
from strobe.spark.schema import columns as c
from strobe.storage.files.urls import canonical_url

EARLIEST = "earliest"
LATEST = "latest"

_KNOWN = (
    "path",
    "table",
    "snapshot",
    "without",
    "process",
    "verify",
    "partitions",
    "startingPosition",
    "endingPosition",
    "maxSnapshotsPerTrigger",
    "pushFilters",
)


class SourceOptions(msgspec.Struct, frozen=True):
    """`start` and `until` are log positions: `start` is for streams, `until` for tables at an earlier moment."""

    request: TableRequest
    snapshots: frozenset[str] | None
    without: frozenset[str]
    partitions: int
    start: str
    until: int | None
    snapshots_max: int | None
    push_filters: bool

    @classmethod
    def parse(cls, options: Mapping[str, str]) -> "SourceOptions":
        """Return the parsed `options`; raise UsageError if they are not valid."""
        _refuse_unknown(options)
        if "path" not in options:
            raise UsageError('format("strobe") needs the store: load("./snapshots"), or option("path", "./snapshots")')
        table = _one_of(options, "table", tuple(c.READABLE))
        if "process" in options and c.PROCESS not in c.READABLE[table]:
            raise UsageError(f'format("strobe"): the table {table!r} has no column {c.PROCESS!r} to filter by')
        start = options.get("startingPosition", EARLIEST)
        return cls(
            TableRequest(
                canonical_url(options["path"]),
                table,
                options.get("process"),
                _one_of(options, "verify", (VERIFY_SNAPSHOT, VERIFY_READ)) if "verify" in options else VERIFY_SNAPSHOT,
            ),
            frozenset(options["snapshot"].split(",")) if "snapshot" in options else None,
            frozenset(options.get("without", "").split(",")),
            _number(options, "partitions", least=1) or os.cpu_count() or 1,
            start if start == LATEST else str(_number({"startingPosition": start.replace(EARLIEST, "0")}) or 0),
            _number(options, "endingPosition"),
            _number(options, "maxSnapshotsPerTrigger", least=1),
            _one_of({"pushFilters": options.get("pushFilters", "false").lower()}, "pushFilters", ("false", "true"))
            == "true",
        )

    def narrowed(self, column: str, values: tuple[str, ...]) -> "SourceOptions | None":
        """Return these options limited to rows with one of `values` in `column`, or None if they cannot express it."""
        if column == c.SNAPSHOT_ID:
            return msgspec.structs.replace(self, snapshots=frozenset(filter(self._names, values)))
        if column == c.PROCESS and len(values) == 1 and self.request.process in (None, values[0]):
            return msgspec.structs.replace(self, request=msgspec.structs.replace(self.request, process=values[0]))
        return None

    def wants(self, snapshot_id: str) -> bool:
        """Return whether the snapshot is selected."""
        return snapshot_id not in self.without and self._names(snapshot_id)

    def _names(self, snapshot_id: str) -> bool:
        """Return whether the option `snapshot` has the id, whole or short, or is not given."""
        return self.snapshots is None or snapshot_id in self.snapshots or short_name(snapshot_id) in self.snapshots


def _refuse_unknown(options: Mapping[str, str]) -> None:
    known = {name.lower() for name in _KNOWN}
    for name in options:
        if name.lower() not in known:
            raise UsageError(f'format("strobe") has no option {name!r}; options are: {", ".join(_KNOWN)}')


def _one_of(options: Mapping[str, str], name: str, known: tuple[str, ...]) -> str:
    value = options.get(name)
    if value not in known:
        given = "is missing" if value is None else f"is {value!r}"
        raise UsageError(f'format("strobe"): the option {name!r} {given}; it is one of: {", ".join(known)}')
    return value


def _number(options: Mapping[str, str], name: str = "startingPosition", *, least: int = 0) -> int | None:
    value = options.get(name)
    if value is None:
        return None
    if not value.isdecimal() or int(value) < least:
        raise UsageError(f'format("strobe"): the option {name!r} is {value!r}; give a whole number, {least} or more')
    return int(value)
