"""Receive buffers are reused, but never while a view of them exists."""

from strobe.runtime.links.receive_buffers import BUFFER_BYTES, ReceiveBuffers


def test_an_unreferenced_buffer_is_reused() -> None:
    buffers = ReceiveBuffers(4 * BUFFER_BYTES)
    first = buffers.take(1)
    buffers.give_back(first)
    again = buffers.take(1)
    assert again is first
    assert len(again) == BUFFER_BYTES


def test_a_buffer_with_a_view_is_not_reused() -> None:
    buffers = ReceiveBuffers(4 * BUFFER_BYTES)
    first = buffers.take(1)
    first[:4] = b"held"
    held = memoryview(first)[:4].toreadonly()
    buffers.give_back(first)
    other = buffers.take(1)
    other[:4] = b"new!"
    assert other is not first
    assert held == b"held"
    held.release()
    assert buffers.take(1) is first


def test_a_long_frame_gets_a_large_enough_buffer() -> None:
    buffers = ReceiveBuffers(4 * BUFFER_BYTES)
    buffers.give_back(buffers.take(1))
    assert len(buffers.take(BUFFER_BYTES + 1)) == BUFFER_BYTES + 1


def test_the_pool_keeps_no_more_than_its_bound() -> None:
    buffers = ReceiveBuffers(2 * BUFFER_BYTES)
    taken = [buffers.take(1) for _ in range(5)]
    for buffer in taken:
        buffers.give_back(buffer)
    assert [buffers.take(1) for _ in range(2)] == taken[3:]
    fresh = buffers.take(1)
    assert all(fresh is not buffer for buffer in taken)
