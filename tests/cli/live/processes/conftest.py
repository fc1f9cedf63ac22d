"""Fixtures shared by the tests of `strobe up` and its children."""

import os

import pytest


@pytest.fixture
def lifeline():
    read, write = os.pipe()
    yield read
    os.close(read)
    os.close(write)
