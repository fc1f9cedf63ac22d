"""Joins the promises (docs/promises.toml) with their code and the tests that show them into docs/claims.md.

A test cites promises by id at the start of its name (`test_C3_first_marker_...`, `test_E6_E7_...`). A test or a test
file cites them in its docstring, at the start (`C3: ...`, `E6, E7.`, `G1, and ...`) or in parentheses (`(S1, S2)`,
`(V3-V5)`).
Tests in tests/claims and tests/live are listed by name, all others by file. They are read as text and never imported.

    tools/claims.py            write docs/claims.md
    tools/claims.py --check    write nothing; fail if it is stale, a built promise has no test, or a path is wrong
"""

from __future__ import annotations

import argparse
import ast
import itertools
import re
import sys
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PROMISES = Path("docs/promises.toml")
TESTS = Path("tests")
SHOWING = ("tests/claims/", "tests/live/")
SOURCE = Path("src/strobe")
CLAIMS = Path("docs/claims.md")

STATUSES = ("built", "planned")

ID = r"[A-Z][0-9]+"
CITED_IN_NAME = re.compile(rf"test_((?:{ID}_)+)")
LIST = rf"{ID}(?:(?:,? (?:and )?|-){ID})*"
CITED_AT_START = re.compile(rf"({LIST})(?:[:.,]|$)")
CITED_IN_PARENTHESES = re.compile(rf"\(({LIST})[);]")
RANGE = re.compile(r"([A-Z])([0-9]+)-\1([0-9]+)")


class ClaimsError(Exception):
    """A promise is invalid, or a test cites an unknown one; the message names it."""


@dataclass(frozen=True, slots=True)
class Promise:
    id: str
    short: str
    status: str
    scope: str = ""
    code: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.status not in STATUSES:
            raise ClaimsError(f"{self.id}: status is {self.status!r}, not one of {', '.join(STATUSES)}")


@dataclass(frozen=True, slots=True)
class Promises:
    groups: dict[str, str]
    by_id: dict[str, Promise]

    @classmethod
    def read(cls, path: Path) -> Promises:
        table = tomllib.loads(path.read_text(encoding="utf-8"))
        by_id = {id_: Promise(id=id_, **fields) for id_, fields in table["promises"].items()}
        for id_ in by_id:
            if id_[0] not in table["groups"]:
                raise ClaimsError(f"{id_}: no group {id_[0]} in {path.name}")
        return cls(table["groups"], by_id)


def cited_ids(name: str, docstring: str | None, promises: Promises) -> list[str]:
    """The promise ids that a test or a test file cites, each once, in the order of citing.

    In parentheses, rules of a protocol have ids too: only those of promises count there.
    """
    in_name = CITED_IN_NAME.match(name)
    at_start = CITED_AT_START.match(docstring or "")
    first = ids_in((in_name[1] if in_name else "") + " " + (at_start[1] if at_start else ""))
    later = ids_in(" ".join(match[1] for match in CITED_IN_PARENTHESES.finditer(docstring or "")))
    return list(dict.fromkeys([*first, *(id_ for id_ in later if id_ in promises.by_id)]))


def ids_in(citation: str) -> list[str]:
    """The ids in a citation; `V3-V5` stands for all three."""

    def every(match: re.Match[str]) -> str:
        return " ".join(f"{match[1]}{number}" for number in range(int(match[2]), int(match[3]) + 1))

    return re.findall(ID, RANGE.sub(every, citation))


def tests_in(tree: ast.Module | ast.ClassDef, prefix: str, promises: Promises) -> Iterator[tuple[str, list[str]]]:
    """Each test function of a module or test class as (node id, cited ids)."""
    for node in tree.body:
        if isinstance(node, ast.ClassDef) and node.name.startswith("Test"):
            yield from tests_in(node, f"{prefix}::{node.name}", promises)
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test"):
            yield f"{prefix}::{node.name}", cited_ids(node.name, ast.get_docstring(node), promises)


@dataclass(frozen=True, slots=True)
class Shown:
    """The tests that show a promise, by name, and the files with other tests of it."""

    tests: list[str]
    files: list[str]


def tests_by_promise(root: Path, promises: Promises) -> dict[str, Shown]:
    found = {id_: Shown([], []) for id_ in promises.by_id}
    for path in sorted((root / TESTS).rglob("test_*.py")):
        file = path.relative_to(root).as_posix()
        tree = ast.parse(path.read_text(encoding="utf-8"))
        tests = list(tests_in(tree, file, promises))
        of_file = cited_ids("", ast.get_docstring(tree), promises)
        for test, ids in [*tests, (file, of_file)]:
            for id_ in ids:
                if id_ not in found:
                    raise ClaimsError(f"{test} cites {id_}, which is no promise in {PROMISES.as_posix()}")
        for id_ in dict.fromkeys([*itertools.chain(*(ids for _, ids in tests)), *of_file]):
            named = [test for test, ids in tests if id_ in ids] if file.startswith(SHOWING) else []
            found[id_].tests.extend(named)
            if not named:
                found[id_].files.append(file)
    return found


def render(promises: Promises, tests: dict[str, Shown]) -> str:
    built = sum(promise.status == "built" for promise in promises.by_id.values())
    lines = [
        "<!-- Written by `make claims` from docs/promises.toml and the tests; change those instead. -->",
        "# What is promised, the code that does it, and the tests that show it",
        "",
        f"{len(promises.by_id)} promises, {built} built. Code is below `{SOURCE.as_posix()}`. Run a test with",
        "`.venv/bin/python -m pytest TEST`.",
    ]
    for letter, title in promises.groups.items():
        lines += ["", f"## {letter}: {title}"]
        for id_, promise in promises.by_id.items():
            if id_[0] == letter:
                lines += ["", *_section(promise, tests[id_])]
    return "\n".join(lines) + "\n"


def _section(promise: Promise, shown: Shown) -> list[str]:
    status = "" if promise.status == "built" else f" *({promise.status})*"
    lines = [f"**{promise.id}** {promise.short}{status}", ""]
    if promise.scope:
        lines.append(f"- holds for: {promise.scope}")
    if promise.code:
        lines.append(f"- code: {', '.join(f'`{file}`' for file in promise.code)}")
    lines += [f"- `{test}`" for test in shown.tests]
    if shown.files:
        lines.append(f"- also: {', '.join(f'`{file}`' for file in shown.files)}")
    return lines if lines[-1] else lines[:-1]


def problems(root: Path, promises: Promises, tests: dict[str, Shown]) -> list[str]:
    """Why the claims are wrong; empty if they are right."""
    found = []
    for id_, promise in promises.by_id.items():
        if promise.status == "built" and not tests[id_].tests:
            found.append(f"{id_} is built, but no test in {' or '.join(SHOWING)} cites it: {promise.short}")
        if promise.status == "built" and not promise.code:
            found.append(f"{id_} is built, but {PROMISES.as_posix()} names no code of it")
        found += [
            f"{id_}: {SOURCE.as_posix()}/{file} does not exist; correct {PROMISES.as_posix()}"
            for file in promise.code
            if not (root / SOURCE / file).is_file()
        ]
    claims = root / CLAIMS
    if not claims.exists() or claims.read_text(encoding="utf-8") != render(promises, tests):
        found.append(f"{CLAIMS.as_posix()} is stale: run `make claims`")
    return found


def main(arguments: list[str] | None = None, root: Path = ROOT) -> int:
    parser = argparse.ArgumentParser(description="Write docs/claims.md, or check that it is true and fresh.")
    parser.add_argument("--check", action="store_true", help="write nothing; fail when stale or unshown")
    check = parser.parse_args(arguments).check
    try:
        promises = Promises.read(root / PROMISES)
        tests = tests_by_promise(root, promises)
    except ClaimsError as error:
        print(f"claims: {error}", file=sys.stderr)
        return 1
    if not check:
        (root / CLAIMS).write_text(render(promises, tests), encoding="utf-8")
        return 0
    found = problems(root, promises, tests)
    for problem in found:
        print(f"claims: {problem}", file=sys.stderr)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
