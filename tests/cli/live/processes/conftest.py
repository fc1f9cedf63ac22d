"""What the tests of `strobe up` and of its children share."""

import os

import pytest


@pytest.fixture
def lifeline():
    read, write = os.pipe()
    yield read
    os.close(read)
    os.close(write)
