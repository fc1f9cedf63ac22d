"""Documents with one change, as an attacker who knows the format could write them."""

import copy

NESTING = 100_000
DEEP = object()
"""Stands for 100,000 nested arrays, which Python's encoders cannot encode."""
_DEEP_TEXT = "strobe-test-deep"

HOSTILE = [
    None, True, False, 0, 1, -1, 2**31, 2**32, 2**53 + 1, 2**63 - 1, 2**63, 2**64 - 1, 2**64, 10**18, 10**30,
    -(2**63), 0.5, 1e308, "", "a", "\0", "a\nb", "\x1b[31m", "../../etc/passwd", "/dev/zero", "0" * 64, "f" * 64,
    "g" * 64, "é" * 32, "000001-00000001-coordinator", "x" * 100_000, "coordinator", "keyed", "bytes", "msgpack",
    [], {}, [[]], {"a": 1}, [None], DEEP,
]  # fmt: skip


def places(document, path=()):
    """Yield the path to every value in a document, and to the document itself."""
    yield path
    inner = (
        document.items() if isinstance(document, dict) else enumerate(document) if isinstance(document, list) else ()
    )
    for key, value in inner:
        yield from places(value, (*path, key))


def mutated(document, random):
    """Return a copy of `document` with one change, and a description of the change. `json_text` encodes the copy."""
    changed = copy.deepcopy(document)
    paths = list(places(changed))[1:]
    *path, last = random.choice(paths)
    holder = changed
    for key in path:
        holder = holder[key]
    kind = random.choice(("replace", "replace", "replace", "remove", "double", "swap", "number"))
    value = holder[last]
    if kind == "remove":
        del holder[last]
    elif kind == "double" and isinstance(holder, list):
        holder.append(copy.deepcopy(value))
    elif kind == "double":
        holder[f"{last}'"] = copy.deepcopy(value)
    elif kind == "swap":
        other = changed
        for key in random.choice(paths):
            other = other[key]
        holder[last] = copy.deepcopy(other)
    elif kind == "number" and isinstance(value, int):
        holder[last] = value + random.choice((-1, 1, 2**32, -value - 1))
    else:
        holder[last] = random.choice(HOSTILE)
    return changed, f"{kind} {'.'.join(map(str, (*path, last)))}"


def json_text(document, encode):
    """Return `document` as JSON, with `encode` for everything except what is nested too deep for it."""

    def plain(value):
        if value is DEEP:
            return _DEEP_TEXT
        if isinstance(value, dict):
            return {key: plain(inner) for key, inner in value.items()}
        return [plain(inner) for inner in value] if isinstance(value, list) else value

    text = encode(plain(document))
    return text.replace(f'"{_DEEP_TEXT}"'.encode(), b"[" * NESTING + b"]" * NESTING)
