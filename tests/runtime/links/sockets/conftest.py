"""Fixtures shared by the tests of links over sockets."""

import pytest

from strobe.runtime.links import outgoing_link


@pytest.fixture
def short_back_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outgoing_link, "BACK_OFF_S_MIN", 0.001)
    monkeypatch.setattr(outgoing_link, "BACK_OFF_S_MAX", 0.004)
