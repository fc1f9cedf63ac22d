"""Text about simulation runs, shared by several commands."""

from collections.abc import Mapping

_SINGULAR = {
    "partitions": "partition",
    "process crashes": "process crash",
    "coordinator crashes": "coordinator crash",
    "leaves": "leave",
    "joins": "join",
    "snapshots by a process": "snapshot by a process",
}


def faults_text(injected: Mapping[str, int]) -> str:
    """Return how often each kind of fault happened."""
    order = sorted(injected, key=[*_SINGULAR, *injected].index)
    kinds = (f"{injected[kind]:,} {_SINGULAR.get(kind, kind) if injected[kind] == 1 else kind}" for kind in order)
    return ", ".join(kinds) or "none"
