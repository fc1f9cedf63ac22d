"""Limits on file descriptors: for this program, and for the connections of each port.

Connections, log entries, blobs and links all need descriptors. Anyone who reaches a port can take one per connection,
so each port has a maximum. Together these leave more than half for the program's own work.
"""

import resource
from contextlib import suppress

DESCRIPTORS_MAX = 65_536
"""More are never needed, and some libraries iterate over every allowed descriptor."""
API_CONNECTIONS_MAX = 128
STRANGERS_MAX = 256
UNKNOWN_LINKS_MAX = 64
_SHARE = 8
"""A port may use at most 1 / `_SHARE` of all descriptors."""
BACKLOG = 256
"""Connections that the operating system holds for a port; the event loop may accept all of them in one iteration."""


def raise_limit() -> None:
    """Raise this program's limit on open descriptors as far as allowed."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = DESCRIPTORS_MAX if hard == resource.RLIM_INFINITY else min(hard, DESCRIPTORS_MAX)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        with suppress(OSError, ValueError):  # not allowed here: the limits below adapt
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def at_most(wanted: int) -> int:
    """Return how many connections a port may have, at most `wanted`."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return wanted if soft == resource.RLIM_INFINITY else max(1, min(wanted, soft // _SHARE))
