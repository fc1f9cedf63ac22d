"""The addresses at which a program listens, according to the operating system."""

import socket
from contextlib import suppress
from pathlib import Path

_LISTENS = "0A"


def listening(pid):
    """Return the (host, port) of every TCP socket on which process `pid` accepts connections."""
    own, found = _sockets(pid), []
    for family, table in ((socket.AF_INET, "tcp"), (socket.AF_INET6, "tcp6")):
        lines = Path(f"/proc/{pid}/net/{table}").read_text().splitlines()[1:]
        for local, state, inode in ((words[1], words[3], words[9]) for words in map(str.split, lines)):
            if state == _LISTENS and inode in own:
                host, _, port = local.partition(":")
                found.append((_readable(family, host), int(port, 16)))
    return sorted(found)


def _sockets(pid):
    found = set()
    for descriptor in Path(f"/proc/{pid}/fd").iterdir():
        with suppress(FileNotFoundError):  # closed in between
            kind, _, inode = str(descriptor.readlink()).partition(":")
            if kind == "socket":
                found.add(inode.strip("[]"))
    return found


def _readable(family, host):
    """Decode an address. The kernel prints it in words of four bytes, each in the machine's byte order."""
    words = [bytes.fromhex(host[at : at + 8]) for at in range(0, len(host), 8)]
    return socket.inet_ntop(family, b"".join(word[::-1] for word in words))
