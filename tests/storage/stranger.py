"""A reader of stores written from docs/format.md alone: it imports nothing of Strobe.

python stranger.py DIRECTORY      prints, for each snapshot, whether its proof holds
"""

import json
import struct
import sys
from pathlib import Path

import msgspec
import xxhash
from blake3 import blake3

START = b'{"blake3":"'


class Wrong(Exception):
    """What is wrong, and where."""


def unseal(path):
    raw = path.read_bytes()
    digits = raw[11:75]
    if raw[:11] != START or blake3(START + b"0" * 64 + raw[75:]).hexdigest().encode() != digits:
        raise Wrong(f"{path.name}: checksum")
    return json.loads(raw), digits.decode()


def read_header(root):
    header, checksum = unseal(root / "strobe.json")
    if header["format"] != "strobe-store" or header["version"] != 1:
        raise Wrong("strobe.json: another format or version")
    return checksum


def read_entry(root, position):
    path = root / "log" / f"{position:020d}.json"
    if not path.exists():
        raise Wrong(f"{path.name}: missing")
    document, checksum = unseal(path)
    if document["position"] != position:
        raise Wrong(f"{path.name}: holds another entry")
    check_values(document["entry"])
    return document, checksum


def read_log(root, position, previous, heights):
    """Return the entries from `position` on; `previous` and `heights` are checksum and highest numbers before it."""
    entries, bad, end = [], {}, position
    for present in sorted(int(path.name[:20]) for path in (root / "log").iterdir()):
        if present - end > 1000:
            raise Wrong(f"entries {end} to {present - 1}: missing")
        end = max(end, present + 1)
    for number in range(position, end):
        try:
            document, checksum = read_entry(root, number)
            if previous not in (None, document["previous"]):
                raise Wrong(f"entry {number}: chain")
            heights = risen(heights, document.get("term", 0), document["entry"])
        except Wrong as error:
            bad[number] = error
            previous = None
            continue
        previous = checksum
        entries.append((number, document["entry"], document.get("term", 0)))
    for number, entry, _ in entries:
        if (
            entry["type"] == "fence"
            and entry["position"] < number
            and entry["blake3"] == found(root, entry["position"])
        ):
            bad.pop(entry["position"], None)
    for error in bad.values():
        raise error
    return entries


def found(root, position):
    path = root / "log" / f"{position:020d}.json"
    return blake3(path.read_bytes()).hexdigest() if path.exists() else ""


def risen(heights, written_in, entry):
    """Return the highest term, epoch and view number with this entry, which must not be far above those before."""
    kind, (term, epoch, view) = entry["type"], heights
    if written_in < term:
        return heights
    if kind == "term" and entry["term"] != written_in + 1:
        raise Wrong(f"term {entry['term']} after {written_in}")
    new = (
        written_in,
        entry["epoch"] if kind == "epoch" else epoch,
        entry["view"]["number"] if kind == "view" or (kind == "epoch" and entry.get("view")) else view,
    )
    if any(after > before + 1000 for before, after in zip(heights, new, strict=True)):
        raise Wrong(f"{new} after {heights}")
    return (written_in + (kind == "term"), max(epoch, new[1]), max(view, new[2]))


def check_numbers(value, key=""):
    if isinstance(value, dict):
        for inner, one in value.items():
            check_numbers(one, inner)
    elif isinstance(value, list):
        for one in value:
            check_numbers(one, key)
    elif isinstance(value, int) and key != "timers":
        bits = 64 if key == "random" else 32 if key in ("number", "view", "joined") else 63
        if not 0 <= value < 1 << bits:
            raise Wrong(f"{key}: {value}")


def check_values(entry):
    check_numbers(entry)
    for name in ("snapshot", "parent", "retries", "restored"):
        if entry.get(name) is not None:
            epoch, counter, _ = entry[name].split("-", 2)
            if int(epoch) >= 1 << 63 or int(counter) >= 1 << 63:
                raise Wrong(f"{entry[name]}: a number beyond 63 bits")


class Meaning:
    """The state that the entries lead to, from the beginning or from a checkpoint on."""

    def __init__(self):
        self.term, self.epoch, self.opened, self.ended, self.complete, self.pinned = 0, 0, set(), set(), {}, set()

    def end(self, snapshots):
        self.ended.update(snapshots)
        self.opened.difference_update(snapshots)

    def apply(self, entry, written_in):
        if written_in < self.term:
            return
        kind, snapshot = entry["type"], entry.get("snapshot")
        self.term = max(written_in, entry["term"]) if kind == "term" else written_in
        if kind == "begin" and snapshot not in self.opened | self.ended:
            (self.opened if epoch_of(snapshot) >= self.epoch else self.ended).add(snapshot)
        elif kind == "commit" and snapshot in self.opened and entry["manifest"]["epoch"] == epoch_of(snapshot):
            self.end({snapshot})
            self.complete[snapshot] = entry["manifest"]
        elif kind == "abort" and snapshot in self.opened:
            self.end({snapshot})
        elif kind == "epoch" and entry["epoch"] > self.epoch:
            self.epoch = entry["epoch"]
            self.end({snapshot for snapshot in self.opened if epoch_of(snapshot) < self.epoch})
        elif kind == "pin" and not entry["pinned"]:
            self.pinned.discard(snapshot)
        elif kind == "pin" and (snapshot in self.opened or snapshot in self.complete):
            self.pinned.add(snapshot)
        elif kind == "remove" and snapshot in self.complete and snapshot not in self.pinned:
            del self.complete[snapshot]


def complete_snapshots(root, checkpointed=True):
    header = read_header(root)
    meaning, position, previous, heights = Meaning(), 0, header, (0, 0, 0)
    checkpoint = next(whole_checkpoints(root, header), None) if checkpointed else None
    if checkpoint is not None:
        position, previous = checkpoint["position"], checkpoint["previous"]
        meaning = meaning_of(root, checkpoint)
        heights = (meaning.term, meaning.epoch, (checkpoint["fold"].get("view") or {"number": 0})["number"])
    for _, entry, written_in in read_log(root, position, previous, heights):
        meaning.apply(entry, written_in)
    return meaning.complete


def whole_checkpoints(root, header):
    """Yield the checkpoints that are intact and fit the log, newest first."""
    folder = root / "checkpoints"
    for path in sorted(folder.glob("*.json"), reverse=True) if folder.exists() else []:
        try:
            checkpoint, checksum = unseal(path)
            if path.name != f"{checkpoint['position']:020d}-{checksum}.json" or checkpoint["header"] != header:
                raise Wrong(f"{path.name}: renamed, or of another store")
            if read_entry(root, checkpoint["position"] - 1)[1] != checkpoint["previous"]:
                raise Wrong(f"{path.name}: does not fit the log")
            for segment in checkpoint["segments"]:
                read_commits(root, segment)
        except (Wrong, FileNotFoundError):
            continue
        yield checkpoint


def lost_entries(root):
    """Return the positions of entries that are missing and were not removed on purpose."""
    there = {int(path.name[:20]) for path in (root / "log").iterdir()}
    expected = set(range(max(there, default=-1) + 1))
    if not is_untouched(root):
        checkpoints = list(whole_checkpoints(root, read_header(root)))[:2]
        if checkpoints:
            expected = expected - set(range(checkpoints[-1]["position"])) | needed_by(root, checkpoints[-1])
    return sorted(expected - there)


def is_untouched(root):
    """Return whether entry 0 exists and entry 1 follows it: then nothing was removed."""
    try:
        return read_entry(root, 1)[0]["previous"] == read_entry(root, 0)[1]
    except Wrong:
        return False


def needed_by(root, checkpoint):
    fold, needed = checkpoint["fold"], {checkpoint["position"] - 1}
    removed = ids_of(fold.get("removed", []))
    needed.update(parent["position"] for parent in fold.get("removed_parents", []))
    for segment in checkpoint["segments"]:
        _, _, positions, snapshots, *_ = read_commits(root, segment)
        needed.update(
            position for position, snapshot in zip(positions, snapshots, strict=True) if snapshot not in removed
        )
    return needed


def read_commits(root, segment):
    name = f"{segment['start']:020d}-{segment['end']:020d}-{segment['commits']}.commits"
    raw = (root / "checkpoints" / name).read_bytes()
    if blake3(raw).hexdigest() != segment["commits"]:
        raise Wrong(f"{name}: checksum")
    columns = msgspec.msgpack.decode(raw)
    if columns[:2] != ["strobe-commits", 1]:
        raise Wrong(f"{name}: begins otherwise")
    return columns


def meaning_of(root, checkpoint):
    fold, meaning = checkpoint["fold"], Meaning()
    meaning.term, meaning.epoch = checkpoint["term"], fold.get("epoch", 0)
    meaning.opened = {begin["snapshot"] for _, begin, _ in fold.get("open", [])}
    meaning.pinned = set(fold.get("pinned", []))
    removed = ids_of(fold.get("removed", []))
    meaning.ended = removed | ids_of(fold.get("aborted", []))
    for segment in checkpoint["segments"]:
        if segment["live"]:
            _, _, positions, snapshots, checksums, *_ = read_commits(root, segment)
            for position, snapshot, expected in zip(positions, snapshots, checksums, strict=True):
                if snapshot not in removed:
                    document, checksum = read_entry(root, position)
                    if checksum != expected.hex():
                        raise Wrong(f"entry {position}: replaced")
                    meaning.complete[snapshot] = document["entry"]["manifest"]
                    meaning.ended.add(snapshot)
    return meaning


def ids_of(runs):
    return {
        f"{epoch:06d}-{counter:08d}-{initiator}"
        for epoch, initiator, first, last, _ in runs
        for counter in range(first, last + 1)
    }


def epoch_of(snapshot):
    return int(snapshot.split("-")[0])


def read_blob(root, ref):
    path = root / "blobs" / f"{ref['begin']:020d}" / ref["blake3"]
    if not path.exists():
        raise Wrong(f"{path.name}: missing")
    data = path.read_bytes()
    if len(data) != ref["bytes"] or blake3(data).hexdigest() != ref["blake3"]:
        raise Wrong(f"{path.name}: checksum")
    return data


def read_segment(segment):
    offset = 0
    while offset < len(segment):
        code, length = struct.unpack_from(">BI", segment, offset)
        if code != 0xCE or offset + 5 + length > len(segment):
            raise Wrong("a segment is not a sequence of lengths and values")
        yield msgspec.msgpack.decode(segment[offset + 5 : offset + 5 + length])
        offset += 5 + length


def read_keyed(root, record):
    state = {}
    for number, ref in enumerate([record["state"], *record.get("deltas", [])]):
        values = read_segment(read_blob(root, ref))
        if next(values) != ["strobe-keyed", 1, "delta" if number else "base"]:
            raise Wrong("a segment begins otherwise")
        for value in values:
            if isinstance(value, dict):
                state.update(value)
            else:
                for key in value:
                    state.pop(key, None)
    return state


def read_state(root, record):
    if record["encoding"] == "keyed":
        return read_keyed(root, record)
    data = read_blob(root, record["state"])
    return msgspec.msgpack.decode(data) if record["encoding"] == "msgpack" else data


def read_section(blob, section):
    offset, end = section["offset"], section["offset"] + section["bytes"]
    frames = []
    while offset < end:
        first, count, consumed, size = struct.unpack_from("<QIIQ", blob, offset)
        offset += 24 + size
        frames.append((first, count, consumed, blob[offset - size : offset]))
    messages = sum(count - consumed for _, count, consumed, _ in frames)
    if offset != end or len(frames) != section["frames"] or messages != section["messages"]:
        raise Wrong("a section is not what the manifest says")
    return frames


def xxh3(*parts):
    return xxhash.xxh3_128(b"".join(parts)).digest()


def hash_of(channel):
    name = channel.get("hash", "xxh3")
    if name == "xxh3":
        return xxh3
    if name == "blake3" and channel["kind"] == "fifo":
        return lambda *parts: blake3(b"".join(parts)).digest()
    raise Wrong(f"channel {channel['id']}: no {channel['kind']} channel has the hash {name}")


def extend(channel, seed, value, frames):
    digest = hash_of(channel)
    for first, count, _, body in frames:
        header = struct.pack("<QI", first, count)
        if channel["kind"] == "fifo":
            value = digest(value, header, body)
        else:
            total = int.from_bytes(value, "big") + int.from_bytes(digest(seed, header, body), "big")
            value = (total % 2**128).to_bytes(16, "big")
    return value


def array_length(body):
    if body[:1] and 0x90 <= body[0] <= 0x9F:
        return body[0] & 0x0F
    if body[:1] == b"\xdc":
        return struct.unpack_from(">H", body, 1)[0]
    if body[:1] == b"\xdd":
        return struct.unpack_from(">I", body, 1)[0]
    return None


def check_channel(channel, sent, received, frames):
    where = f"channel {channel['id']}"
    if received["count"] + sum(count - consumed for _, count, consumed, _ in frames) != sent["count"]:
        raise Wrong(f"{where}: counts")
    seed = hash_of(channel)(channel["id"].encode(), b"\0", struct.pack("<Q", channel["incarnation"]))
    if {len(end["hash"]) for end in (sent, received)} != {2 * len(seed)}:
        raise Wrong(f"{where}: the length of a hash")
    if extend(channel, seed, bytes.fromhex(received["hash"]), frames).hex() != sent["hash"]:
        raise Wrong(f"{where}: hashes")
    if any(array_length(body) != count for _, count, _, body in frames):
        raise Wrong(f"{where}: a body has not the messages that its frame counts")
    if channel["kind"] == "fifo":
        check_order(where, received["count"], frames)


def check_order(where, received, frames):
    following = received + 1
    for number, (first, count, consumed, _) in enumerate(frames):
        if first + consumed != following or (consumed and number):
            raise Wrong(f"{where}: ordinals")
        following = first + count


def check_proof(root, manifest):
    view, processes = manifest["view"], manifest["processes"]
    if set(processes) != set(view["processes"]):
        raise Wrong("processes are missing, or are too many")
    outgoing = {(channel["source"], channel["id"]) for channel in view["channels"]}
    incoming = {(channel["target"], channel["id"]) for channel in view["channels"]}
    for member, expected in (("sent", outgoing), ("received", incoming), ("in_flight", incoming)):
        if {(name, channel) for name, record in processes.items() for channel in record[member]} != expected:
            raise Wrong(f"channels are missing in {member}, or are too many")
    blobs = {name: read_blob(root, record["frames"]) for name, record in processes.items() if "frames" in record}
    for name, record in processes.items():
        read_state(root, record)
        if sum(section["bytes"] for section in record["in_flight"].values()) != len(blobs.get(name, b"")):
            raise Wrong(f"the sections of {name} do not fill its blob")
    for channel in view["channels"]:
        source, target = processes[channel["source"]], processes[channel["target"]]
        frames = read_section(blobs.get(channel["target"], b""), target["in_flight"][channel["id"]])
        check_channel(channel, source["sent"][channel["id"]], target["received"][channel["id"]], frames)


def is_terminated(manifest):
    """No process is active, no timer is pending, no message in flight; one that declares nothing may always act."""
    records = manifest["processes"].values()
    active = any(record.get("declared", {}).get("active", True) or record.get("timers") for record in records)
    return not active and not any(one["messages"] for record in records for one in record["in_flight"].values())


def main(directory):
    root = Path(directory)
    for snapshot, manifest in complete_snapshots(root).items():
        check_proof(root, manifest)
        sys.stdout.write(f"{snapshot}: the proof holds\n")


if __name__ == "__main__":
    main(sys.argv[1])
