"""Writes docs/api.md, the reference of the public API, from the docstrings. griffe reads them; nothing is imported.

tools/api.py            write docs/api.md
tools/api.py --check    write nothing; fail if it is stale, or a public name has no docstring
"""

from __future__ import annotations

import argparse
import inspect
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import griffe

ROOT = Path(__file__).resolve().parent.parent
PAGE = Path("docs/api.md")
PUBLIC = {
    "strobe": "What you write: processes, channels, and the system they form.",
    "strobe.runtime": "Sources and sinks of a live system ([outside.md](outside.md)).",
    "strobe.outside": "What a source or sink of your own must do.",
    "strobe.spark": "Snapshots in Spark ([spark.md](spark.md), [pipeline.md](pipeline.md)). Needs the extra `spark`.",
    "strobe.testing.pytest_plugin": "Fixtures for pytest, found wherever Strobe is installed"
    " ([testing](guide/6-testing.md)).",
    "strobe.testing.running_system": "What the fixture `live_system` returns.",
}
HEAD = """# Reference

The public names, from their docstrings. Made by `make api`; do not edit. To learn by examples,
read the [guide](guide/README.md).
"""
INTERNAL = {
    "KeyedState": {"from_segments", "freeze", "forget_changes", "encode"},
    "Node": {"__init__", "require_no_stretch"},
    "RunningSystem": {"__init__", "start", "end"},
    "System": {"conserved_value", "decode_recorded"},
    "outside": {"shown_position"},
}
"""Names without an underscore that only other modules of Strobe use."""
LINE_MAX = 100


class Undocumented(Exception):
    """A public name has no docstring; the message names it."""


def document(root: Path) -> str:
    """Return the text of the page."""
    package = griffe.load("strobe", search_paths=[root / "src"], allow_inspection=False)
    contents, parts = [], []
    for path, purpose in PUBLIC.items():
        module = package.modules_collection[path]
        found = [_target(module, name) for name in _names(module)]
        links = [f"[{one.name}](#{_anchor(_heading(path, one))})" for one in found]
        contents.append(f"- **{path}**: {', '.join(links)}")
        parts += [f"## {path}\n\n{purpose}\n", *(_entry(path, one) for one in found)]
    return "\n".join([HEAD, *contents, "", *parts])


def _names(module: griffe.Object) -> list[str]:
    """Return the public names of a module: its `__all__`, or the classes and functions that it defines."""
    if module.exports is not None:
        names = sorted(str(name) for name in module.exports if not str(name).startswith("_"))
        return [name for name in names if not _is_internal(module, name)]
    defined = (one for one in module.members.values() if not one.is_alias and (one.is_class or one.is_function))
    return [one.name for one in defined if not one.name.startswith("_")]


def _target(module: griffe.Object, name: str) -> griffe.Object:
    member = module.members[name]
    return member.final_target if isinstance(member, griffe.Alias) else member


def _anchor(heading: str) -> str:
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


def _heading(path: str, member: griffe.Object) -> str:
    return f"{'class ' if member.is_class else ''}{path}.{member.name}"


def _entry(path: str, member: griffe.Object) -> str:
    heading = f"### {_heading(path, member)}\n"
    if isinstance(member, griffe.Function):
        return "\n".join([heading, _code(_signature(member, _is_fixture(member))), _text(member)])
    assert isinstance(member, griffe.Class), f"{member.path} is neither a class nor a function"
    return "\n".join([heading, _code(_class_head(member)), _text(member), *_members(member)])


def _members(owner: griffe.Class) -> Iterator[str]:
    """Yield the methods and properties that have a docstring. Sources and sinks of Strobe have those of `Source`."""
    for member in owner.members.values():
        if member.is_alias or member.name.startswith("_") or _is_internal(owner, member.name):
            continue
        if member.docstring is None or {str(base) for base in owner.bases} & {"Source", "Sink"}:
            continue
        if isinstance(member, griffe.Function):
            kinds = "".join(f"@{kind}\n" for kind in ("staticmethod", "classmethod") if kind in member.labels)
            yield f"{_code(f'{kinds}{_signature(member)}')}\n{_text(member)}"
        elif isinstance(member, griffe.Attribute) and "property" in member.labels:
            yield f"{_code(f'{member.name}: {member.annotation}')}\n{_text(member)}"


def _is_internal(owner: griffe.Object, name: str) -> bool:
    return name in INTERNAL.get(owner.name, set())


def _class_head(owner: griffe.Class) -> str:
    """Return how to make an object of the class, and its fields."""
    made = owner.members.get("__init__")
    if _is_internal(owner, "__init__"):
        return f"class {owner.name}"
    if isinstance(made, griffe.Function) and not _is_abstract(owner):
        return f"class {_signature(made).removeprefix('def ').replace('__init__', owner.name, 1).partition(' -> ')[0]}"
    fields = [
        f"    {name}{_annotated(one.annotation)}{f' = {one.value}' if one.value is not None else ''}"
        for name, one in owner.members.items()
        if isinstance(one, griffe.Attribute) and not name.startswith("_") and "property" not in one.labels
    ]
    return "\n".join([f"class {owner.name}", *fields])


def _annotated(annotation: object) -> str:
    return f": {annotation}" if annotation is not None else ""


def _is_abstract(owner: griffe.Class) -> bool:
    return any(str(base) == "ABC" for base in owner.bases)


def _is_fixture(function: griffe.Function) -> bool:
    return any("fixture" in str(decorator.value) for decorator in function.decorators)


def _signature(function: griffe.Function, fixture: bool = False) -> str:
    """Return the signature; on several lines if it is long. A fixture is only requested by its name."""
    if fixture:
        return function.name
    prefix = "async def " if "async" in function.labels else "def "
    returns = f" -> {function.returns}" if function.returns is not None else ""
    words = list(_parameters(function))
    line = f"{prefix}{function.name}({', '.join(words)}){returns}"
    if len(line) <= LINE_MAX:
        return line
    return "\n".join([f"{prefix}{function.name}(", *(f"    {word}," for word in words), f"){returns}"])


def _parameters(function: griffe.Function) -> Iterator[str]:
    keyword_only = False
    for parameter in function.parameters:
        if parameter.name in ("self", "cls"):
            continue
        if parameter.kind is griffe.ParameterKind.keyword_only and not keyword_only:
            keyword_only = True
            yield "*"
        stars = {griffe.ParameterKind.var_positional: "*", griffe.ParameterKind.var_keyword: "**"}.get(
            parameter.kind or griffe.ParameterKind.positional_or_keyword, ""
        )
        keyword_only = keyword_only or stars == "*"
        annotation = _annotated(parameter.annotation)
        equals = " = " if annotation else "="
        default = f"{equals}{parameter.default}" if parameter.default is not None and not stars else ""
        yield f"{stars}{parameter.name}{annotation}{default}"


def _code(text: str) -> str:
    return f"```python\n{text}\n```\n"


def _text(member: griffe.Object) -> str:
    if member.docstring is None:
        raise Undocumented(f"{member.path} is public and has no docstring")
    return f"{_as_markdown(inspect.cleandoc(member.docstring.value))}\n"


def _as_markdown(text: str) -> str:
    """Return a docstring as Markdown: indented examples become blocks of code."""
    lines: list[str] = []
    in_code = False
    for line in text.splitlines():
        indented = line.startswith("    ")
        if indented and not in_code and lines and not lines[-1]:
            lines.append("```python")
            in_code = True
        if in_code and line and not indented:
            lines.insert(len(lines) - 1 if not lines[-1] else len(lines), "```")
            in_code = False
        lines.append(line.removeprefix("    ") if in_code else line)
    return "\n".join([*lines, "```"] if in_code else lines)


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--check", action="store_true", help="write nothing; fail if the page is stale")
    options = parser.parse_args(arguments)
    try:
        text = document(ROOT)
    except Undocumented as problem:
        print(f"api: error: {problem}", file=sys.stderr)
        return 1
    page = ROOT / PAGE
    if not options.check:
        page.write_text(text, encoding="utf-8")
    elif not page.exists() or page.read_text(encoding="utf-8") != text:
        print(f"api: error: {PAGE} is not what the docstrings say; run: make api", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
