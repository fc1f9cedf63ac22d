"""A pool of receive buffers. Frames are views of them, so a buffer is reused only when no view of it is left.

Fresh memory costs a page fault per 4 KB: receiving a frame of 1 MB into it takes three times as long as into reused
memory.
"""

from collections import deque

BUFFER_BYTES = 256 << 10
SMALL_BUFFER_BYTES = 16 << 10
"""For the processes of a program with many: each of their channels holds a buffer, also while it is idle."""


class ReceiveBuffers:
    """Hands out buffers, and takes them back even if frames still refer to them."""

    __slots__ = ("_kept", "_kept_bytes", "buffer_bytes", "kept_bytes_max")

    def __init__(self, kept_bytes_max: int, buffer_bytes: int = BUFFER_BYTES) -> None:
        self.buffer_bytes = buffer_bytes
        self.kept_bytes_max = kept_bytes_max
        self._kept: deque[bytearray] = deque()
        self._kept_bytes = 0

    def take(self, bytes_min: int) -> bytearray:
        """Return an unreferenced buffer of at least `bytes_min` bytes."""
        bytes_min = max(bytes_min, self.buffer_bytes)
        # The oldest buffer is most likely free: messages are received in order.
        while self._kept and _is_free(self._kept[0]):
            buffer = self._kept.popleft()
            self._kept_bytes -= len(buffer)
            if len(buffer) >= bytes_min:
                return buffer
        return bytearray(bytes_min)

    def give_back(self, buffer: bytearray) -> None:
        """Return `buffer` to the pool. Frames may still refer to it."""
        self._kept.append(buffer)
        self._kept_bytes += len(buffer)
        # A buffer in use for long (a channel being recorded) leaves the pool, and is freed with its last reference.
        while self._kept_bytes > self.kept_bytes_max:
            self._kept_bytes -= len(self._kept.popleft())


def _is_free(buffer: bytearray) -> bool:
    # A bytearray cannot be resized while a view of it exists. The removed byte is put back.
    try:
        buffer.append(buffer.pop())
    except BufferError:
        return False
    return True
