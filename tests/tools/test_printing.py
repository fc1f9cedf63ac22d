"""Everything that Strobe prints goes through one of two modules, which escape text from outside (E14)."""

import ast
from pathlib import Path

import strobe

SOURCE = Path(strobe.__file__).parent
SINKS = ("cli/shell/output.py", "runtime/event_log.py")
_PRINTING = {"print", "echo", "secho", "print_exc", "print_exception", "print_stack", "StreamHandler", "basicConfig"}
_WRITING = {"write", "writelines", "buffer"}
_STREAMS = {"stdout", "stderr", "__stdout__", "__stderr__"}
_MARKUP = {"rich.text", "rich.table", "rich.markup", "rich.panel", "rich"}


def printing(tree: ast.AST) -> list[str]:
    """Return the names in a module that would print directly."""
    found = []
    for node in ast.walk(tree):
        match node:
            case ast.Call(func=ast.Name(id=name) | ast.Attribute(attr=name)) if name in _PRINTING:
                found.append(name)
            case ast.Attribute(value=ast.Attribute(attr=stream), attr=use) if stream in _STREAMS and use in _WRITING:
                found.append(f"{stream}.{use}")
            case ast.ImportFrom(module=module) if module in _MARKUP:
                found.append(module)
    return found


def test_ways_to_print_are_found() -> None:
    for text in (
        "print('x')",
        "typer.echo('x')",
        "sys.stderr.write('x')",
        "sys.stdout.buffer.write(b'x')",
        "traceback.print_exc()",
        "from rich.text import Text",
        "logging.StreamHandler()",
    ):
        assert printing(ast.parse(text)), text
    assert printing(ast.parse("sys.stdout.isatty(); log.say('x'); file.write('x')")) == []


def test_only_the_two_sinks_print() -> None:
    found = {str(path.relative_to(SOURCE)): printing(ast.parse(path.read_text())) for path in SOURCE.rglob("*.py")}
    assert {path for path, ways in found.items() if ways} <= set(SINKS)
    assert found["cli/shell/output.py"]
