"""Damaged and crafted traces are refused with file and place: no other error, no hang, bounded memory (E14)."""

import base64
import json
import os
import random
import resource

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.cli.command_line import run
from tests.runtime.tracing.long.recorded_runs import simulate
from tests.runtime.tracing_host import write_segments
from tests.support.mutating import DEEP, HOSTILE, NESTING, json_text, mutated

from strobe.causality.trace import parse_trace
from strobe.causality.trace_lines import encode_header, encode_lines
from strobe.errors import UsageError
from strobe.traces import pages
from strobe.traces.clock_logs.exporting import to_log
from strobe.traces.pages import check_pages
from strobe.traces.reading import read_live_trace
from strobe.traces.rows import SCHEMA
from strobe.traces.sealing import KEY, UNSEALED, seal
from strobe.traces.segments import read_segment

MUTANTS = 200
CRAFTED = 60
STRIDE = 19
MEMORY_BYTES_MAX = 300 << 20


@pytest.fixture(scope="module")
def recorded():
    return simulate()


@pytest.fixture
def epoch(recorded, tmp_path):
    return write_segments(recorded, tmp_path, "full")


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    """The smallest segment of a trace."""
    directory = write_segments(simulate(), tmp_path_factory.mktemp("small"))
    return min(directory.rglob("*.parquet"), key=lambda path: path.stat().st_size)


@pytest.fixture
def bounded_memory():
    """Fail if the test increases the peak memory of this process by more than a limit."""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    yield
    assert (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024 < MEMORY_BYTES_MAX


def test_E14_a_changed_bit_anywhere_in_a_segment_is_found(small, tmp_path):
    """E14: one bit in every 19th byte of the file."""
    raw, chance = small.read_bytes(), random.Random(1)
    file = tmp_path / "000001.parquet"
    for place in range(0, len(raw), STRIDE):
        changed = bytearray(raw)
        changed[place] ^= 1 << chance.randrange(8)
        file.write_bytes(changed)
        with pytest.raises(UsageError, match=r"000001\.parquet (cannot be read|is not a segment)"):
            read_segment(file)


def test_E14_a_segment_that_was_shortened_or_extended_is_found(small, tmp_path):
    """E14: cut at every 19th length, or with bytes added."""
    raw = small.read_bytes()
    file = tmp_path / "000001.parquet"
    for changed in (
        *(raw[:length] for length in range(0, len(raw), STRIDE)),
        raw + b"\0",
        raw + b"PAR1",
        raw + raw,
        b"PAR1" + raw,
    ):
        file.write_bytes(changed)
        with pytest.raises(UsageError, match=r"000001\.parquet (cannot be read|is not a segment)"):
            read_segment(file)


def test_E14_the_command_finds_damage_in_any_segment(epoch):
    """E14: `trace verify` with a single bit changed, each time in another file."""
    chance = random.Random(2)
    files = sorted(epoch.rglob("*.parquet"))
    for file in chance.sample(files, 5):
        raw = bytearray(file.read_bytes())
        place = chance.randrange(len(raw))
        raw[place] ^= 1
        file.write_bytes(raw)
        result = run("trace", "verify", epoch)
        assert result.code == 1
        assert f"{file.parent.name}/{file.name}" in result.err
        raw[place] ^= 1
        file.write_bytes(raw)
    assert run("trace", "verify", epoch).code == 0


def test_E14_a_fifo_in_the_place_of_a_segment_is_refused(epoch):
    """E14: opening it would block until a writer comes."""
    file = epoch / "a" / "000001.parquet"
    file.unlink()
    os.mkfifo(file)
    result = run("trace", "verify", epoch)
    assert result.code == 1
    assert "000001.parquet cannot be read: is a FIFO, but must be a regular file" in " ".join(result.err.split())


NAMES = [field.name for field in SCHEMA if pa.types.is_dictionary(field.type)]


def crafted(header, rows, schema=SCHEMA, **options):
    """Return a segment with a valid checksum, and with any metadata and rows, consistent or not."""
    metadata = {name: json_text(value, msgspec.json.encode) for name, value in header.items()}
    table = pa.Table.from_pylist(rows, schema=schema).replace_schema_metadata(metadata | {KEY: UNSEALED})
    written = pa.BufferOutputStream()
    pq.write_table(table, written, **{"use_dictionary": NAMES} | options)
    return seal(written.getvalue().to_pybytes())


def as_python(file):
    segment = read_segment(file)
    return msgspec.to_builtins(segment.header), segment.rows().to_pylist()


ROW_VALUES = {
    "position": [None, 0, -1, 2**53, 2**62, -(2**63)],
    "ordinal": [None, 0, -1, 2**53, 2**63 - 1],
    "count": [None, 0, -1, 2**24, 2**40, 2**63 - 1],
    "step": [None, -1, 2, 2**40],
    "kind": [None, "", "send", "receive", "internal", "record", "x"],
    "channel": [None, "", "x", "a->b"],
    "snapshot_id": [None, "", "x"],
    "name": [None, "", "\x1b[31m"],
    "payload": [
        None,
        b"",
        b"\xc1",
        b"\x91" * NESTING,
        b"\xdd\xff\xff\xff\xff",
        b"\xd4\x05\x01",
        b"\xa1\xff",
        b"\x81\xc0\x01",
    ],
    "at": [None, float("nan"), float("inf"), -1.0],
}


def spoiled(header, rows, chance):
    """Return header and rows with one change, and a description of it."""
    if chance.random() < 0.5 or not rows:
        header, change = mutated(header, chance)
        return header, rows, change
    rows = [dict(row) for row in rows]
    row, name = chance.choice(rows), chance.choice(list(ROW_VALUES))
    row[name] = chance.choice(ROW_VALUES[name])
    return header, rows, f"{name} = {row[name]!r:.40}"


@pytest.mark.usefixtures("bounded_memory")
def test_E14_crafted_segments_are_refused_or_found_invalid(epoch):
    """E14: their checksums are valid, so later checks are reached; about half of them have a correct line count."""
    files = sorted(epoch.rglob("*.parquet"))
    codes = set()
    for seed in range(CRAFTED):
        chance = random.Random(seed)
        file = chance.choice(files)
        whole = file.read_bytes()
        header, rows, change = spoiled(*as_python(file), chance)
        if chance.random() < 0.5 and isinstance(header.get("lines"), int):
            header["lines"] = sum(row["count"] or 0 for row in rows)
        try:
            file.write_bytes(crafted(header, rows))
            result = run("trace", "verify", epoch)
        finally:
            file.write_bytes(whole)
        assert result.code in (0, 1, 2), (seed, change, result)
        codes.add(result.code)
    assert codes >= {0, 2}


@pytest.mark.parametrize("name", SCHEMA.names)
def test_E14_columns_of_another_type_are_refused(epoch, name):
    """E14: each column in turn has booleans, which no column of a segment has."""
    file = epoch / "a" / "000001.parquet"
    header, rows = as_python(file)
    schema = SCHEMA.set(SCHEMA.names.index(name), pa.field(name, pa.bool_()))
    file.write_bytes(crafted(header, [row | {name: True} for row in rows], schema))
    with pytest.raises(UsageError, match="does not have the columns of a trace"):
        read_live_trace(epoch)


@pytest.mark.usefixtures("bounded_memory")
def test_E14_a_row_that_claims_too_many_lines_is_refused(epoch):
    """E14: the number of lines is checked before any line is created."""
    file = epoch / "a" / "000001.parquet"
    header, rows = as_python(file)
    rows[0]["count"] = header["lines"] = 2**45
    file.write_bytes(crafted(header, rows))
    assert run("trace", "verify", epoch).code == 1


def repeating(file, column, value, count, version, **options):
    """Return a segment whose `column` has the same value in every row, so that it compresses very well."""
    header, rows = as_python(file)
    row = next(row for row in rows if row["kind"] == "receive") | {"count": 1}
    table = pa.Table.from_pylist([row], SCHEMA).take(pa.array([0] * count))
    values = pa.DictionaryArray.from_arrays(pa.array([0] * count, pa.int32()), [value])
    table = table.set_column(SCHEMA.names.index(column), column, values)
    metadata = {name: json_text(part, msgspec.json.encode) for name, part in (header | {"lines": count}).items()}
    stored = base64.b64encode(SCHEMA.with_metadata(metadata).serialize().to_pybytes())
    written = pa.BufferOutputStream()
    how = {"store_schema": False, "compression": "zstd", "data_page_version": version} | options
    with pq.ParquetWriter(written, table.schema, **how) as writer:
        writer.write_table(table)
        writer.add_key_value_metadata({KEY: UNSEALED, "ARROW:schema": stored})
    return seal(written.getvalue().to_pybytes())


@pytest.mark.usefixtures("bounded_memory")
@pytest.mark.parametrize("version", ["1.0", "2.0"])
@pytest.mark.parametrize("column", ["payload", "message_id"])
def test_E14_a_dictionary_that_expands_without_bound_is_refused(epoch, column, version):
    """E14: a file of less than 200 kB, whose rows would take 2 GB."""
    file = epoch / "a" / "000001.parquet"
    value = b"\xda\x4e\x20" + b"x" * 20_000 if column == "payload" else "x" * 20_000
    file.write_bytes(repeating(file, column, value, 100_000, version, use_dictionary=[*NAMES, column]))
    assert file.stat().st_size < 200_000
    with pytest.raises(UsageError, match=rf"000001\.parquet cannot be read: column {column} has an encoding"):
        read_segment(file).rows()
    assert run("trace", "verify", epoch).code == 1


@pytest.mark.parametrize("version", ["1.0", "2.0"])
@pytest.mark.parametrize("column", ["payload", "name"])
def test_E14_an_encoding_with_shared_prefixes_is_refused(epoch, column, version):
    """E14: in DELTA_BYTE_ARRAY, each row may repeat a long value at no cost."""
    file = epoch / "a" / "000001.parquet"
    value = b"\xa1x" if column == "payload" else "x"
    names = [name for name in NAMES if name != column]
    encoding = {"use_dictionary": names, "column_encoding": {column: "DELTA_BYTE_ARRAY"}}
    file.write_bytes(repeating(file, column, value, 10, version, **encoding))
    with pytest.raises(UsageError, match=f"column {column} has an encoding that can expand without a bound"):
        read_segment(file).rows()


@pytest.mark.parametrize("version", ["1.0", "2.0"])
def test_E14_pages_are_added_up_before_any_is_expanded(epoch, monkeypatch, version):
    """E14: zeros compress to almost nothing; the sizes declared in the footer are not trusted."""
    file = epoch / "a" / "000001.parquet"
    plain = {"use_dictionary": NAMES}
    file.write_bytes(repeating(file, "payload", b"\xda\x4e\x20" + bytes(20_000), 1000, version, **plain))
    assert len(read_segment(file).rows()) == 1000
    monkeypatch.setattr(pages, "EXPANDED_BYTES_MAX", 20_000_000)
    with pytest.raises(UsageError, match="its pages expand to more than 20,000,000 bytes"):
        read_segment(file).rows()


def test_E14_overwritten_page_headers_are_refused(small):
    """E14: random bytes overwrite the page headers of random columns."""
    raw, chance = small.read_bytes(), random.Random(3)
    with pq.ParquetFile(pa.BufferReader(raw)) as file:
        check_pages(raw, file.metadata, NAMES)
        refused = 0
        for _ in range(500):
            column = file.metadata.row_group(0).column(chance.randrange(file.metadata.num_columns))
            start = column.dictionary_page_offset or column.data_page_offset
            place = start + chance.randrange(12)
            changed = raw[:place] + chance.randbytes(8) + raw[place + 8 :]
            try:
                check_pages(changed, file.metadata, NAMES)
            except ValueError:
                refused += 1
        assert refused > 100


@pytest.mark.usefixtures("bounded_memory")
def test_E14_mutated_lines_of_a_trace_are_refused_or_found_invalid(recorded, tmp_path):
    """E14: one value of a JSON lines file, header included, is changed; then it is verified, counted or drawn."""
    lines = [encode_header(recorded.header), *encode_lines(list(recorded.lines())[:80]).splitlines(keepends=True)]
    documents = [json.loads(line) for line in lines]
    file = tmp_path / "run.jsonl"
    codes = set()
    for seed in range(MUTANTS):
        chance = random.Random(seed)
        number = 0 if chance.random() < 0.3 else chance.randrange(len(lines))
        document, change = mutated(documents[number], chance)
        text = json_text(document, msgspec.json.encode) + b"\n"
        file.write_bytes(b"".join((*lines[:number], text, *lines[number + 1 :])))
        command = chance.choice(
            (
                ("verify", file),
                ("export", file, "--out", tmp_path / "out.svg"),
                ("lattice", file, "--count", "--max-cuts", "100"),
            )
        )
        result = run("trace", *command)
        assert result.code in (0, 1, 2, 4), (seed, number, change, result)
        codes.add(result.code)
    assert codes >= {0, 2}


@pytest.mark.parametrize(
    "text",
    [
        b"[" * NESTING,
        b'{"kind":' * NESTING,
        b'{"kind":"send","kind":"internal","process":"a","position":1}',
        b"\xff\xfe",
        b"{}" * 1000,
        b"1" * 10_000,
    ],
)
def test_E14_invalid_lines_are_refused_with_their_number(recorded, text):
    """E14: too deeply nested, a duplicate member, not UTF-8, several values, a huge number."""
    with pytest.raises(UsageError, match="line 2: "):
        parse_trace([encode_header(recorded.header), text + b"\n"]).check()


@pytest.mark.usefixtures("bounded_memory")
def test_E14_mutated_clock_logs_are_refused_or_found_invalid(recorded, tmp_path):
    """E14: logs with vector clocks may come from any source."""
    lines = [f"{line}\n" for line in to_log(recorded)][:60]
    file, out = tmp_path / "run.log", tmp_path / "run.jsonl"
    for seed in range(MUTANTS):
        chance = random.Random(seed)
        number = chance.randrange(len(lines))
        value = chance.choice(HOSTILE)
        shown = "[" * NESTING if value is DEEP else json.dumps(value, ensure_ascii=False)
        line = lines[number]
        place = chance.randrange(len(line))
        changed = chance.choice(
            (
                line[:place] + shown + line[place:],
                line[:place],
                line[place:],
                f'a {{"a":{shown}}}\n',
                f"a {{{shown}:1}}\n",
            )
        )
        file.write_text("".join((*lines[:number], changed, *lines[number + 1 :])), "utf-8", newline="")
        result = run("trace", "import", file, "--out", out)
        assert result.code in (0, 1, 2), (seed, number, changed[:200], result)
        out.unlink(missing_ok=True)
