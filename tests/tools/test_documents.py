"""The pages of the documentation keep their size, and their examples give the values that they show."""

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def test_the_readme_fits_on_three_screens() -> None:
    assert len((ROOT / "README.md").read_text("utf-8").splitlines()) <= 150


def test_the_python_of_the_trace_page_gives_what_it_shows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = (ROOT / "docs/trace.md").read_text("utf-8")
    (tmp_path / "run.jsonl").write_text(text.split("```\n")[1])
    monkeypatch.chdir(tmp_path)
    block = re.findall(r"^```python\n(.*?)^```", text, re.MULTILINE | re.DOTALL)[0]
    names: dict[str, object] = {}
    exec(block, names)
    shown = re.findall(r"^(?:\w+ = )?(\S.*?) +# ([{\[TF].*?)(?:: [a-z].*)?$", block, re.MULTILINE)
    assert [eval(code, names) for code, _ in shown] == [ast.literal_eval(value) for _, value in shown]
    assert len(shown) == 4
