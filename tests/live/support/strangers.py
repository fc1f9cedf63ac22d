"""What strangers send to the ports of nodes and coordinators: garbage, other protocols, messages of other systems."""

import socket
from contextlib import contextmanager

import msgspec

from strobe.runtime.links.codec import HEADER, HELLO, MAGIC, MESSAGES, Hello, handshake_frame
from strobe.runtime.messages.control import LENGTH, VERSION, Register, pack

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
    lambda chance: _message(_REGISTER | {chance.choice(list(_REGISTER)): chance.choice(_HOSTILE)}),
    lambda chance: _message(_REGISTER | {"process": chance.choice(_HOSTILE), "epoch": 1}),
    # Messages of a node that returns with the state of its epoch, and then reports something false.
    lambda chance: _message(_RETURNING) + _message(_started(chance.choice(_COUNTERS), chance.choice(_HOSTILE))),
    lambda chance: _message(_RETURNING) + _message(_stored(chance.choice(_REFERENCES))),
]


def _message(fields):
    fields = dict(fields)
    body = msgspec.msgpack.encode((fields.pop("type"), fields))
    return LENGTH.pack(len(body)) + body


_REGISTER = {"type": "Register", "version": VERSION, "process": "nobody", "instance": "stranger", "epoch": 0}
_REGISTER |= {"address": ["127.0.0.1", 1], "channels": [], "protocol": "chandy-lamport"}
_RETURNING = _REGISTER | {"epoch": 1}
_HOSTILE = ["", "a\nb", "\x1b[31m", "../../etc/passwd", "x" * 300, -1, 2**64 - 1, float("nan"), None, [], {"": 0}]
_COUNTERS = [-1, 2**40, 2**63 - 1, 2**64 - 1]
_REFERENCES = ["../" * 12 + "dev/zero", "/etc/passwd", "", "0" * 63]


def _started(counter, initiator):
    return {"type": "SnapshotStarted", "snapshot": [1, counter, initiator], "process": "nobody", "view": 1}


def _stored(reference):
    state = {"blake3": reference, "bytes": 1, "begin": 0}
    record = {"position": 1, "encoding": "bytes", "state": state, "sent": {}, "received": {}, "in_flight": {}}
    stored = {"snapshot": [1, 1, "nobody"], "process": "nobody", "view": 1, "record": record}
    return {"type": "FragmentStored", **stored}


def garbage(chance):
    """Return data that is neither a frame nor a message, or belongs to another system."""
    return chance.choice(_KINDS)(chance)


def throw(address, data):
    """Connect, send `data` and close; return whether anybody listened."""
    host, _, port = address.rpartition(":")
    try:
        with socket.create_connection((host, int(port)), timeout=1) as connection:
            connection.sendall(data)
            connection.shutdown(socket.SHUT_WR)
    except ConnectionRefusedError:
        return False
    except OSError:
        return True  # the other side has closed the connection already
    return True


_POST = b"POST /v1/snapshots HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
_GET = b"GET /openapi.json HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"
HALF_OPEN = {
    # What is sent first, and what is sent repeatedly.
    "nothing": (b"", b""),
    "half a header": (b"GET /v1/status HTTP/1.1\r\nHost: 127.0", b""),
    "a header byte by byte": (b"GET /v1/status HTTP/1.1\r\n", b"a"),
    "half a body": (_POST + b"Content-Length: 1000\r\n\r\n{", b""),
    "a body byte by byte": (_POST + b"Content-Length: 100000\r\n\r\n", b" "),
    "a body without end": (_POST + b"Transfer-Encoding: chunked\r\n\r\n", b"1\r\n \r\n"),
    "requests whose answers are not read": (_GET * 20, _GET),
    "an upgrade": (_GET[:-2] + b"Connection: Upgrade\r\nUpgrade: websocket\r\n\r\n", b"\x81"),
}
"""Requests of clients of an HTTP port that never end."""


class Crowd:
    """A number of connections to one address that never end; those that are closed are opened again."""

    def __init__(self, address, count, first=b"", then=b""):
        host, _, port = address.rpartition(":")
        self._address = host, int(port)
        self._first, self._then = first, then
        self._connections = [None] * count
        self._unsent = set()
        self.closed = -count

    def press(self):
        """Send more on every connection, and open closed ones again."""
        for place, connection in enumerate(self._connections):
            if connection is None or not self._goes_on(connection):
                self.closed += 1
                self._connections[place] = self._opened()

    def leave(self):
        for connection in filter(None, self._connections):
            connection.close()

    def _opened(self):
        connection = socket.socket()
        # A tiny receive buffer: what this client does not read fills the sender's buffers.
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1)
        connection.setblocking(False)
        connection.connect_ex(self._address)
        self._unsent.add(connection)
        return connection

    def _goes_on(self, connection):
        # Nothing is read, so whether the connection was closed comes from the socket's state.
        state = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 1)[0]
        if state == _CONNECTING:
            return True
        try:
            connection.send(self._first if connection in self._unsent else self._then)
        except BlockingIOError:
            return True
        except OSError:
            state = None
        self._unsent.discard(connection)
        if state != _ESTABLISHED:
            connection.close()
        return state == _ESTABLISHED


_ESTABLISHED, _CONNECTING = 1, 2


@contextmanager
def crowd(address, count, way="nothing"):
    """Occupy `address` with half-open connections."""
    connections = Crowd(address, count, *HALF_OPEN[way])
    try:
        connections.press()
        yield connections
    finally:
        connections.leave()
