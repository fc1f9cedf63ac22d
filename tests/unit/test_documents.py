"""The pages of the documentation: their links lead somewhere, and their examples of traces give what they show."""

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
CODE = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\]\((?!https?:)([^)#\s]*)(?:#([^)\s]*))?\)")
HEADING = re.compile(r"^#+ (.*)$", re.MULTILINE)


def anchors(page: Path) -> set[str]:
    """Return the anchors of the headings of `page`, as GitHub makes them."""
    headings = HEADING.findall(CODE.sub("", page.read_text("utf-8")))
    return {re.sub(r"[^\w\- ]", "", heading.strip().lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_link_leads_to_a_file_and_a_heading(page: Path) -> None:
    for path, anchor in LINK.findall(CODE.sub("", page.read_text("utf-8"))):
        target = page.parent / path if path else page
        assert target.exists(), path
        assert not anchor or anchor in anchors(target), f"{path}#{anchor}"


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
