"""Every page of docs/guide runs as written: its files, its commands in order, and what they print."""

import os
import re
import sys
from itertools import pairwise
from pathlib import Path

import pytest
from tests.guide.pages import GUIDE, PAGES, Block, Reader, missing_line, steps, with_definitions

WITHOUT_SPARK = [page for page in PAGES if "spark" not in page.name]


@pytest.fixture(scope="module")
def directory(tmp_path_factory):
    """One directory for all pages, as a reader has."""
    return tmp_path_factory.mktemp("bank")


@pytest.fixture
def reader(directory, monkeypatch):
    monkeypatch.chdir(directory)
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    return Reader(directory)


@pytest.mark.parametrize("page", WITHOUT_SPARK, ids=lambda page: page.stem)
def test_a_page_runs_as_written(reader, page):
    for earlier in PAGES[: PAGES.index(page)]:
        reader.write_files(earlier)
    reader.follow(page)


def test_the_index_lists_every_page_in_order():
    listed = re.findall(r"\]\((\d-[\w-]+\.md)\)", (GUIDE / "README.md").read_text())
    assert listed == [page.name for page in PAGES]
    for page, after in pairwise(PAGES):
        assert page.read_text().rstrip().splitlines()[-1].startswith("Next: ["), page
        assert f"]({after.name})" in page.read_text().rstrip().splitlines()[-1], page


def test_a_definition_takes_the_place_of_the_one_with_its_name():
    file = "import a\n\nclass A:\n    x = 1\n\ndef f():\n    pass\n\nlast = 1\n"
    part = "# in file.py\nfrom b import c\nclass A:\n    x = 2\n\ndef g():\n    pass\n"
    changed = with_definitions(file, part)
    names: dict[str, object] = {}
    exec(changed.replace("from b import c", "").replace("import a", ""), names)
    assert changed.startswith("from b import c\nimport a\n")
    assert changed.index("def g") < changed.index("last = 1")
    assert names["A"].x == 2
    assert changed.count("class A") == 1


def test_what_a_page_shows_after_a_command_is_compared(reader):
    block = Block("console", "$ echo 1\n1\n$ echo two\nthree\n")
    first, second = steps(block)
    reader.do(first)
    with pytest.raises(AssertionError, match="does not print, in this place:\nthree"):
        reader.do(second)


def test_a_shown_line_that_is_not_printed_is_found():
    printed = "snapshot   000001-00000003-coordinator\na   72  34 ms\nconserved 10\n"
    assert missing_line(["snapshot 000001-00000009", "...", "conserved 10"], printed) is None
    assert missing_line(["snapshot 1.9", "a 7,300 5.0 ms", "conserved …"], printed) is None
    assert missing_line(["a …", "conserved 11"], printed) == "conserved 11"
    assert missing_line(["b 72 34 ms"], printed) == "b 72 34 ms"
    assert missing_line(["conserved 10", "a 72 34 ms"], printed) == "a 72 34 ms"
