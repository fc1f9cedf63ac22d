"""What strangers throw at the ports of nodes and coordinators: garbage, other protocols, other systems' words."""

import socket

from strobe.runtime.control import LENGTH, Register, pack
from strobe.runtime.wire import HEADER, HELLO, MAGIC, MESSAGES, Hello, handshake_frame

_HELLO = bytes(handshake_frame(Hello(system="other", epoch=1, source="a", channel="a->b", incarnation=1)))
_KINDS = [
    lambda chance: chance.randbytes(chance.randrange(1, 400)),
    lambda chance: b"GET / HTTP/1.1\r\nHost: here\r\n\r\n",
    lambda chance: _HELLO,
    lambda chance: _HELLO[: chance.randrange(1, len(_HELLO))],
    lambda chance: HEADER.pack(20, MAGIC, HELLO, 0, 0, 0, 0, 0) + chance.randbytes(20),
    lambda chance: HEADER.pack(1 << 31, MAGIC, MESSAGES, 1, 1, 1, 1, 0) + chance.randbytes(100),
    lambda chance: LENGTH.pack(0xFFFFFFFF) + bytes(100),
    lambda chance: LENGTH.pack(20) + chance.randbytes(20),
    lambda chance: pack(Register(99, "a", "stranger", 0, ("127.0.0.1", 1), (), "chandy-lamport")),
]


def garbage(chance):
    """Return something that is no frame, no message, or one of somebody else's."""
    return chance.choice(_KINDS)(chance)


def throw(address, data):
    """Connect, say `data`, and hang up, or be hung up on; tell whether anybody was there."""
    host, _, port = address.rpartition(":")
    try:
        with socket.create_connection((host, int(port)), timeout=1) as connection:
            connection.sendall(data)
            connection.shutdown(socket.SHUT_WR)
    except ConnectionRefusedError:
        return False
    except OSError:
        return True  # it was hung up on already
    return True
