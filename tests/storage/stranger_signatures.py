"""A checker of signatures written from docs/format.md alone, without Strobe and with its own MessagePack encoder."""

import struct

from blake3 import blake3
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.serialization import load_pem_public_key


def pack(value):
    if value is None:
        return b"\xc0"
    if isinstance(value, bool):
        return b"\xc3" if value else b"\xc2"
    if isinstance(value, float):
        return struct.pack(">Bd", 0xCB, value)
    if isinstance(value, int):
        return pack_integer(value)
    if isinstance(value, str):
        raw = value.encode()
        return pack_length(len(raw), 0xA0, 32, ((0xD9, ">BB"), (0xDA, ">BH"), (0xDB, ">BI"))) + raw
    return pack_length(len(value), 0x90, 16, ((0xDC, ">BH"), (0xDD, ">BI"))) + b"".join(map(pack, value))


def pack_integer(value):
    if value < 128:
        return struct.pack(">B", value)
    for code, form in ((0xCC, ">BB"), (0xCD, ">BH"), (0xCE, ">BI"), (0xCF, ">BQ")):
        if value < 256 ** (struct.calcsize(form) - 1):
            return struct.pack(form, code, value)
    raise ValueError(value)


def pack_length(length, short, short_end, longer):
    if length < short_end:
        return bytes([short + length])
    code, form = next((code, form) for code, form in longer if length < 256 ** (struct.calcsize(form) - 1))
    return struct.pack(form, code, length)


def pairs(mapping, value=lambda value: value):
    return [[key, value(mapping[key])] for key in sorted(mapping, key=str.encode)]


def blob(ref):
    return [ref["blake3"], ref["bytes"]] if ref else None


def end(frontier):
    return [frontier["count"], frontier["hash"]]


def hash_view(view):
    names = ("id", "source", "target", "kind", "incarnation")
    channels = [[one[name] for name in names] + hash_not_xxh3(one) for one in view["channels"]]
    return blake3(pack(["strobe-view-1", view["number"], view["processes"], channels])).hexdigest()


def hash_not_xxh3(channel):
    return [name for name in [channel.get("hash", "xxh3")] if name != "xxh3"]


def signed_bytes(snapshot, view, process, record):
    return pack(
        [
            "strobe-fragment-1",
            snapshot,
            int(snapshot.split("-")[0]),
            hash_view(view),
            process,
            record["position"],
            record["encoding"],
            blob(record["state"]),
            [blob(delta) for delta in record.get("deltas", [])],
            pairs(record["sent"], end),
            pairs(record["received"], end),
            blob(record.get("frames")),
            pairs(record["in_flight"], lambda one: [one["offset"], one["bytes"], one["frames"], one["messages"]]),
            pairs({name: float(seconds) for name, seconds in record.get("timers", [])}),
            str(record["random"]) if "random" in record else None,
            pairs(record.get("sources", {})),
            pairs(record.get("sinks", {})),
            *(declared(one) for one in [record.get("declared")] if one is not None),
            *([record["state_version"]] if "state_version" in record else []),
        ]
    )


def declared(one):
    members = (("tag_place", None), ("tag", None), ("grants", False), ("requests", False), ("references", []))
    rules = [[rule.get(name, default) for name, default in members] for rule in one.get("messages", [])]
    waits = waiting(one["waits"]) if "waits" in one else None
    return [waits, pairs(one.get("references", {})), one.get("active", True), rules]


def waiting(one):
    members = [member if isinstance(member, str) else waiting(member) for member in one["processes"]]
    return [members, one.get("any_suffices", False), one.get("times_out", False)]


def unsigned(snapshot, manifest, keys):
    """Return the processes of the view that have not signed; `keys` is a directory with NAME.pub."""
    return [name for name in manifest["view"]["processes"] if not has_signed(snapshot, manifest, name, keys)]


def has_signed(snapshot, manifest, process, keys):
    record = manifest["processes"].get(process, {})
    if "signature" not in record:
        return False
    key = load_pem_public_key((keys / f"{process}.pub").read_bytes())
    try:
        key.verify(bytes.fromhex(record["signature"]), signed_bytes(snapshot, manifest["view"], process, record))
    except InvalidSignature:
        return False
    return True
