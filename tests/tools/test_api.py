"""docs/api.md and tools/api.py, which makes it: every public name is there, with its docstring."""

import importlib
import inspect
import re
import sys
from pathlib import Path

import pytest

from strobe.process import Context, Process

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "api.md").read_text("utf-8")
MODULE = '''
"""A module."""
__all__ = ["Account", "open_account"]

class Account:
    """An account.

    Use it so:

        account = Account(5)
        account.close()

    It is closed once.
    """

    def __init__(self, balance: int = 0, *, owner: str = "ada") -> None:
        self.balance = balance

    @classmethod
    def empty(cls) -> "Account":
        """Return one without money."""

    @property
    def closed(self) -> bool:
        """Whether it is closed."""

    def _hidden(self) -> None:
        """Not shown."""

def open_account(name, *more, **options):
    """Open one."""
'''


@pytest.fixture(scope="module")
def tool():
    spec = importlib.util.spec_from_file_location("api", ROOT / "tools" / "api.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def made(tool, tmp_path, monkeypatch):
    """Return what the tool makes of a package that consists of one module."""
    monkeypatch.setattr(tool, "PUBLIC", {"strobe": "All of it."})

    def make(text):
        (tmp_path / "src" / "strobe").mkdir(parents=True)
        (tmp_path / "src" / "strobe" / "__init__.py").write_text(text)
        return tool.document(tmp_path)

    return make


def section(name):
    return re.search(rf"^### (?:class )?{re.escape(name)}$(.*?)(?=^###? |\Z)", PAGE, re.M | re.S)


@pytest.mark.parametrize("module", ["strobe", "strobe.runtime", "strobe.spark"])
def test_every_public_name_has_a_section(module):
    for name in importlib.import_module(module).__all__:
        assert name.startswith("_") or section(f"{module}.{name}"), name


@pytest.mark.parametrize("owner", [Process, Context])
def test_every_handler_and_method_of_a_context_is_shown_with_its_docstring(owner):
    text = " ".join(section(f"strobe.{owner.__name__}")[1].split())
    for name, method in inspect.getmembers(owner, inspect.isfunction):
        if not name.startswith("_"):
            assert f"def {name}(" in text, name
            assert " ".join(inspect.getdoc(method).partition("\n")[0].split()) in text, name


def test_signatures_and_examples_are_blocks_of_code(made):
    page = made(MODULE)
    assert "```python\nclass Account(balance: int = 0, *, owner: str = 'ada')\n```" in page
    assert "```python\naccount = Account(5)\naccount.close()\n```" in page
    assert "```python\n@classmethod\ndef empty() -> Account\n```\n\nReturn one without money." in page
    assert "```python\nclosed: bool\n```\n\nWhether it is closed." in page
    assert "```python\ndef open_account(name, *more, **options)\n```\n\nOpen one." in page
    assert "_hidden" not in page


def test_a_public_name_without_a_docstring_is_refused(tool, made):
    with pytest.raises(tool.Undocumented, match=r"strobe\.open_account is public and has no docstring"):
        made(MODULE.replace('    """Open one."""', "    pass"))
