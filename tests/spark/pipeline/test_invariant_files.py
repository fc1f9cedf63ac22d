"""Files with invariants in Python: a function with a wrong signature is refused when its file is read (E13)."""

from pathlib import Path

import pytest

from strobe.errors import UsageError
from strobe.spark.pipeline.invariants import read_invariants

HEAD = "from strobe.spark.pipeline.invariants import invariant\n@invariant\n"


@pytest.mark.parametrize(
    ("function", "problem"),
    [
        ("async def total(tables): return tables", r"total is async \(.*mine\.py:2\)"),
        ("def total(tables): yield tables", r"total has a yield in it \(.*mine\.py:2\)"),
        ("def total(): pass", r"total takes \(\) \(.*mine\.py:2\); Strobe calls total\(tables\)"),
    ],
)
def test_an_invariant_that_cannot_be_called_is_refused(tmp_path: Path, function: str, problem: str) -> None:
    (tmp_path / "mine.py").write_text(HEAD + function)
    with pytest.raises(UsageError, match=problem):
        read_invariants(tmp_path)
