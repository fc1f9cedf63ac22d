"""The memory that links receive into. Frames are views of it, so it is used again only when no view of it is left.

Fresh memory costs a page fault for every 4 KB; receiving a frame of 1 MB into it takes three times as long as receiving
the frame into memory that was used before.
"""

from collections import deque

BUFFER_BYTES = 256 << 10


class ReceiveBuffers:
    """Hands out buffers, and takes them back with whatever still refers to them."""

    __slots__ = ("_kept", "_kept_bytes", "kept_bytes_max")

    def __init__(self, kept_bytes_max: int) -> None:
        self.kept_bytes_max = kept_bytes_max
        self._kept: deque[bytearray] = deque()
        self._kept_bytes = 0

    def take(self, bytes_min: int) -> bytearray:
        """Return a buffer of at least `bytes_min` bytes to which nobody refers."""
        bytes_min = max(bytes_min, BUFFER_BYTES)
        # The oldest is the most likely to be free: messages are received in order.
        while self._kept and _is_free(self._kept[0]):
            buffer = self._kept.popleft()
            self._kept_bytes -= len(buffer)
            if len(buffer) >= bytes_min:
                return buffer
        return bytearray(bytes_min)

    def give_back(self, buffer: bytearray) -> None:
        """The connection is done with `buffer`; frames in it may not be."""
        self._kept.append(buffer)
        self._kept_bytes += len(buffer)
        # What is in use for long (a channel being recorded) leaves here, and is freed by whoever lets go of it last.
        while self._kept_bytes > self.kept_bytes_max:
            self._kept_bytes -= len(self._kept.popleft())


def _is_free(buffer: bytearray) -> bool:
    # A bytearray does not change its length while a view of it exists. This gives it back the byte it takes.
    try:
        buffer.append(buffer.pop())
    except BufferError:
        return False
    return True
