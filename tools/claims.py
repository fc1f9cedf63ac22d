"""Joins the promises (docs/promises.toml) with the tests that show them (tests/claims, tests/live) into docs/claims.md.

A test cites promises by id, first thing in its name (`test_C3_first_marker_...`, `test_E6_E7_...`) or first thing in
its docstring (`C3: ...`, `E6, E7: ...`). Tests are read as text and never imported.

    tools/claims.py            write docs/claims.md
    tools/claims.py --check    write nothing; fail when it is stale, or a built promise has no test
"""

from __future__ import annotations

import argparse
import ast
import re
import sys
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PROMISES = Path("docs/promises.toml")
TESTS = (Path("tests/claims"), Path("tests/live"))
CLAIMS = Path("docs/claims.md")

STATUSES = ("built", "planned")
HEADER = ("| id | promise in short | status | tests |", "|---|---|---|---|")

ID = r"[A-Z][0-9]+"
CITED_IN_NAME = re.compile(rf"test_((?:{ID}_)+)")
CITED_IN_DOCSTRING = re.compile(rf"({ID}(?:,? (?:and )?{ID})*):")


class ClaimsError(Exception):
    """The promises or the tests contradict themselves; the message says where."""


@dataclass(frozen=True, slots=True)
class Promise:
    id: str
    short: str
    status: str
    scope: str = ""

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


def cited_ids(name: str, docstring: str | None) -> list[str]:
    """The promise ids a test cites, each once, in the order of citing."""
    in_name = CITED_IN_NAME.match(name)
    in_docstring = CITED_IN_DOCSTRING.match(docstring or "")
    cited = (in_name[1] if in_name else "") + " " + (in_docstring[1] if in_docstring else "")
    return list(dict.fromkeys(re.findall(ID, cited)))


def tests_in(tree: ast.Module | ast.ClassDef, prefix: str) -> Iterator[tuple[str, list[str]]]:
    """Each test function of a module or test class as (node id, cited ids)."""
    for node in tree.body:
        if isinstance(node, ast.ClassDef) and node.name.startswith("Test"):
            yield from tests_in(node, f"{prefix}::{node.name}")
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test"):
            yield f"{prefix}::{node.name}", cited_ids(node.name, ast.get_docstring(node))


def tests_by_promise(root: Path, promises: Promises) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {id_: [] for id_ in promises.by_id}
    for path in sorted(path for place in TESTS for path in (root / place).rglob("test_*.py")):
        for test, ids in tests_in(ast.parse(path.read_text(encoding="utf-8")), path.relative_to(root).as_posix()):
            for id_ in ids:
                if id_ not in found:
                    raise ClaimsError(f"{test} cites {id_}, which is no promise in {PROMISES.as_posix()}")
                found[id_].append(test)
    return found


def render(promises: Promises, tests: dict[str, list[str]]) -> str:
    built = sum(promise.status == "built" for promise in promises.by_id.values())
    lines = [
        "<!-- Written by `make claims` from docs/promises.toml and tests/claims; change those instead. -->",
        "# What is promised, and the tests that show it",
        "",
        f"{len(promises.by_id)} promises, {built} built. Run one with `.venv/bin/python -m pytest <test>`.",
    ]
    for letter, title in promises.groups.items():
        rows = [_row(promise, tests[id_]) for id_, promise in promises.by_id.items() if id_[0] == letter]
        lines += ["", f"## {letter}: {title}", "", *HEADER, *rows]
    return "\n".join(lines) + "\n"


def _row(promise: Promise, tests: list[str]) -> str:
    status = f"{promise.status}, {promise.scope}" if promise.scope else promise.status
    cited = "<br>".join(f"`{test}`" for test in tests)
    return f"| {promise.id} | {promise.short} | {status} | {cited} |"


def problems(root: Path, promises: Promises, tests: dict[str, list[str]]) -> list[str]:
    """Why the claims cannot stand as they are; empty when they can."""
    found = [
        f"{id_} is built, but no test in {' or '.join(map(str, TESTS))} cites it: {promise.short}"
        for id_, promise in promises.by_id.items()
        if promise.status == "built" and not tests[id_]
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
