"""Traces shared by several test files."""

import shutil

import pytest
from tests.runtime.tracing.long.recorded_runs import PROTOCOLS, simulate, system
from tests.runtime.tracing_host import write_segments

from strobe.causality.trace import Trace
from strobe.storage import Store


@pytest.fixture(scope="module")
def recorded() -> Trace:
    return simulate()


@pytest.fixture(scope="module")
def written(recorded, tmp_path_factory):
    return write_segments(recorded, tmp_path_factory.mktemp("trace"))


@pytest.fixture
def epoch(written, tmp_path):
    """A copy that the test may modify."""
    return shutil.copytree(written, tmp_path / "epoch-000001")


@pytest.fixture(scope="module", params=PROTOCOLS)
def full(request, tmp_path_factory):
    """A full trace in its store, as a live run leaves it."""
    directory = tmp_path_factory.mktemp("store")
    store = Store.create(directory)
    protocol = request.param
    recorded = simulate(protocol=protocol, level="full", store=store)
    epoch = write_segments(recorded, directory / "run" / "trace", "full", system=system(protocol))
    return protocol, store, epoch
