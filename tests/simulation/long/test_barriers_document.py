"""The example in docs/barriers.md runs unchanged."""

import re
from pathlib import Path

TEXT = (Path(__file__).parents[3] / "docs" / "barriers.md").read_text(encoding="utf-8")


def test_the_dataflow_of_the_document_runs(capsys):
    (code,) = re.findall(r"^```python\n(.*?)^```$", TEXT, re.MULTILINE | re.DOTALL)
    exec(compile(code, "docs/barriers.md", "exec"), {"__name__": "document"})
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("aligned: ")
    assert lines[0].endswith("up to 0 words in flight")
    assert len(lines) == 3
    assert "up to 0" not in lines[1]
