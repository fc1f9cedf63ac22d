"""Reads docs/mistakes.md: a bank that works, and sections that each put one mistake into it."""

from __future__ import annotations

import ast
import re
from pathlib import Path
from typing import NamedTuple

from tests.guide.pages import Block, blocks_of, names_of, with_definitions

PAGE = Path(__file__).parents[2] / "docs" / "mistakes.md"
_LEFT_OUT = re.compile(r"# no (\w+)\(\)")


class Mistake(NamedTuple):
    """A section: what a user does wrong, as code or as commands, and what they see."""

    title: str
    code: str
    message: str
    commands: Block | None


def base() -> str:
    """Return the bank that works."""
    return next(block.text for block in blocks_of(PAGE.read_text("utf-8")) if block.file is not None)


def read() -> list[Mistake]:
    sections = PAGE.read_text("utf-8").split("\n### ")[1:]
    return [_mistake(section) for section in sections]


def _mistake(section: str) -> Mistake:
    found = blocks_of(section.partition("\n## ")[0])
    texts = {block.language: block.text for block in found}
    commands = next((block for block in found if block.language == "console"), None)
    title = section.partition("\n")[0]
    return Mistake(title, texts.get("python", ""), texts.get("text", commands.text if commands else ""), commands)


def with_mistake(text: str, part: str) -> str:
    """Return the bank with the methods and definitions of `part` in the place of those of the same names."""
    for node in ast.parse(part).body:
        source = "\n".join(part.splitlines()[node.lineno - 1 : node.end_lineno])
        after = "\n".join(part.splitlines()[node.end_lineno :]).partition("\n\n")[0]
        text = (
            _with_methods(text, node, f"{source}\n{after}")
            if isinstance(node, ast.ClassDef) and f"class {node.name}(" in text
            else with_definitions(text, source)
        )
    return text


def _with_methods(text: str, change: ast.ClassDef, source: str) -> str:
    """Change methods of one class."""
    body = [line for line in source.splitlines()[1:] if line.strip() and not line.strip().startswith("#")]
    changed = [name for node in change.body for name in names_of(node)] + _LEFT_OUT.findall(source)
    lines = text.splitlines()
    owner = next(node for node in ast.parse(text).body if isinstance(node, ast.ClassDef) and node.name == change.name)
    for node in reversed(owner.body):
        if names_of(node) & {*changed}:
            del lines[node.lineno - 1 : node.end_lineno]
    lines[owner.lineno : owner.lineno] = body
    return "\n".join(lines) + "\n"
