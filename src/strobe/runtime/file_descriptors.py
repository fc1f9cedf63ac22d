"""File descriptors: how many this program may have open, and how many of them strangers may take.

Connections, log entries, blobs and links all need descriptors. Anybody who reaches a port can take one for each
connection, so each port has a maximum, and together they leave more than half for the program's own work.
"""

import resource
from contextlib import suppress

DESCRIPTORS_MAX = 65_536
"""More are never needed, and some libraries look at each one that is allowed."""
API_CONNECTIONS_MAX = 128
STRANGERS_MAX = 256
UNKNOWN_LINKS_MAX = 64
_SHARE = 8
"""A port may have at most one in this many of all descriptors."""
BACKLOG = 256
"""Connections that the operating system holds for a port; the event loop may accept all of them in one iteration."""


def raise_limit() -> None:
    """Raise the number of descriptors that this program may have open, as far as it is allowed to."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = DESCRIPTORS_MAX if hard == resource.RLIM_INFINITY else min(hard, DESCRIPTORS_MAX)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        with suppress(OSError, ValueError):  # not allowed here: the limits below follow
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def at_most(wanted: int) -> int:
    """Return how many connections a port may have that wants at most `wanted`."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return wanted if soft == resource.RLIM_INFINITY else max(1, min(wanted, soft // _SHARE))
